// The protocol of a group over a lane: step header, dispatch, combine, parking, loss.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ep/lane.hpp"
#include "kernels/ep/transport_group.hpp"

namespace troupe::kernels::ep {

/// Counters shared by the groups of an endpoint.
struct atomic_counters {
  std::atomic<uint64_t> exchanges{0}, stale_headers{0}, sleeps{0}, nudges{0}, peers_lost{0};
  ep_counters read() const {
    return {exchanges.load(), stale_headers.load(), sleeps.load(), nudges.load(), peers_lost.load()};
  }
};

/// A group from its parts. `incarnations` of all ranks in order; the lane is connected to all of them.
class exchange_group final : public group, private lane_sink {
 public:
  struct parts {
    group_shape shape;
    group_epoch epoch;
    uint32_t rank = 0;
    std::vector<uint64_t> incarnations;
    nanoseconds deadline{};
    wait_policy wait;
    std::shared_ptr<lane> link;
    std::shared_ptr<atomic_counters> counters;
  };
  explicit exchange_group(parts p);
  ~exchange_group() override;

  const group_shape& shape() const override { return p_.shape; }
  uint32_t rank() const override { return p_.rank; }
  result<step_header> begin_step(const step_header& mine) override;
  void wake() override;
  void end() override;
  result<received> dispatch(uint32_t layer, std::span<const float> x, std::span<const route> routes,
                            uint32_t k) override;
  using group::combine;
  result<void> combine(uint32_t layer, std::span<const float> y, std::span<float> out,
                       std::span<const uint32_t> notes) override;
  std::span<const uint32_t> notes(uint32_t from) const override {
    return std::span(in_notes_).subspan(size_t{from} * p_.shape.notes, in_note_counts_[from]);
  }
  std::vector<uint32_t> suspects() const override { return suspects_; }

 private:
  void on_message(const slot_header& header, std::span<const std::byte> payload) override;
  void on_dead(uint32_t rank) override;

  slot_header make_header(slot_kind kind, uint32_t layer) const;
  slot_header* slot(std::byte* region, slot_kind kind, uint32_t source, uint64_t step) const;
  void publish(std::byte* peer, uint32_t rank, const slot_header& header);
  bool send(uint32_t rank, const slot_header& header, std::span<const std::byte> payload, nanoseconds limit);
  bool arrived(slot_kind kind, uint32_t source);
  bool all_arrived(slot_kind kind);
  bool has_left(slot_kind kind, uint32_t rank);
  result<void> check_arrived(slot_kind kind, uint32_t layer);
  result<void> wait_for(slot_kind kind, uint32_t layer);
  result<void> park();
  result<void> usable();
  result<void> lose(std::vector<uint32_t> suspects, std::string why);
  void route_rows(std::span<const route> routes, uint32_t rows, uint32_t k);
  result<void> send_dispatch(uint32_t to, std::span<const float> x);
  result<void> send_combine(uint32_t to, std::span<const float> y, std::span<const uint32_t> notes);
  void take_message(const slot_header& header, std::span<const std::byte> payload);
  result<received> collect(std::span<const float> x);

  // Constant after construction.
  const parts p_;
  const inbox_layout layout_;
  const uint32_t ranks_;
  std::byte* const inbox_;

  // Owned by the group's thread.
  uint64_t stamp_ = 0;  // exchanges begun
  uint64_t step_ = 0;
  uint64_t wake_step_ = 0;  // newest step at which a peer unparks the group
  bool leaving_ = false;    // the running step is the last of some rank
  bool pending_ = false;    // dispatched, not combined
  uint32_t layer_ = 0, k_ = 0, rows_ = 0;
  std::vector<bool> dead_;
  uint32_t deaths_ = 0;               // notices so far
  std::vector<uint32_t> waiting_;     // ranks that the running exchange waits for
  std::vector<uint64_t> bad_seen_;    // per source: stamp of the last slot counted as stale
  std::vector<uint32_t> route_rank_;  // of the last dispatch, per place
  // Of the last dispatch, per destination.
  std::vector<std::vector<uint32_t>> out_rows_;
  std::vector<std::vector<wire_item>> out_items_;
  std::vector<float> in_rows_;
  std::vector<received::item> in_items_;
  struct origin {
    uint32_t source, place;
  };
  std::vector<origin> in_origin_;                    // per received item
  std::vector<uint32_t> in_first_;                   // first item of each source, and the end
  std::vector<uint32_t> in_notes_, in_note_counts_;  // [rank][shape.notes]
  std::vector<uint32_t> suspects_;
  error failure_;
  bool failed_ = false;

  // Any thread.
  std::atomic<bool> woken_{false};
};

}  // namespace troupe::kernels::ep
