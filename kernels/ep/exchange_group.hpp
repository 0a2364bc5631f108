// The protocol of a group over a lane: step header, dispatch, combine, parking, loss.
#pragma once

#include <array>
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
  result<void> dispatch_send(uint32_t micro, uint32_t layer, std::span<const float> x, std::span<const route> routes,
                             uint32_t k) override;
  result<received> dispatch_wait(uint32_t micro) override;
  result<void> combine_send(uint32_t micro, uint32_t layer, std::span<const float> y, std::span<float> out,
                            std::span<const uint32_t> notes) override;
  result<void> combine_wait(uint32_t micro) override;
  std::span<const uint32_t> notes(uint32_t micro, uint32_t from) const override {
    const micro_state& m = micro_[micro];
    return std::span(m.in_notes).subspan(size_t{from} * p_.shape.notes, m.in_note_counts[from]);
  }
  std::vector<uint32_t> suspects() const override { return suspects_; }

 private:
  // A micro-batch's exchange, between its first half and its last.
  enum class phase : uint8_t { idle, dispatched, received, combined };
  struct origin {
    uint32_t source, place;
  };
  struct micro_state {
    phase at = phase::idle;
    uint64_t stamp = 0;  // exchanges begun
    uint32_t layer = 0, k = 0, rows = 0;
    std::span<const float> x;          // of the dispatch
    std::span<float> out;              // of the combine
    std::vector<uint32_t> route_rank;  // of the last dispatch, per place
    // Of the last dispatch, per destination.
    std::vector<std::vector<uint32_t>> out_rows;
    std::vector<std::vector<wire_item>> out_items;
    std::vector<float> in_rows;
    std::vector<received::item> in_items;
    std::vector<origin> in_origin;                   // per received item
    std::vector<uint32_t> in_first;                  // first item of each source, and the end
    std::vector<uint32_t> in_notes, in_note_counts;  // [rank][shape.notes]
    void keep_notes(uint32_t from, const void* numbers, uint32_t count, uint32_t most);
  };
  // What an exchange is about, for waiting.
  struct exchange {
    slot_kind kind = slot_kind::step;
    uint32_t micro = 0, layer = 0;
    uint64_t stamp = 0;
  };

  void on_message(const slot_header& header, std::span<const std::byte> payload) override;
  void on_dead(uint32_t rank) override;

  slot_header make_header(slot_kind kind) const;
  slot_header make_header(slot_kind kind, uint32_t micro) const;
  /// `which`: of a step header the step, else the micro-batch.
  slot_header* slot(std::byte* region, slot_kind kind, uint32_t source, uint64_t which) const;
  void publish(std::byte* peer, uint32_t rank, const slot_header& header);
  bool send(uint32_t rank, const slot_header& header, std::span<const std::byte> payload, nanoseconds limit);
  bool arrived(const exchange& e, uint32_t source);
  bool all_arrived(const exchange& e);
  bool has_left(slot_kind kind, uint32_t rank);
  result<void> check_arrived(const exchange& e);
  result<void> wait_for(const exchange& e);
  result<void> park();
  result<void> usable();
  result<void> lose(std::vector<uint32_t> suspects, std::string why);
  void route_rows(micro_state& m, std::span<const route> routes);
  result<void> send_rows(uint32_t micro, uint32_t to);
  result<void> send_vectors(uint32_t micro, uint32_t to, std::span<const float> y, std::span<const uint32_t> notes);
  void take_message(const slot_header& header, std::span<const std::byte> payload);
  result<received> collect(uint32_t micro);

  // Constant after construction.
  const parts p_;
  const inbox_layout layout_;
  const uint32_t ranks_;
  std::byte* const inbox_;

  // Owned by the group's thread.
  uint64_t step_ = 0;
  uint64_t wake_step_ = 0;  // newest step at which a peer unparks the group
  bool leaving_ = false;    // the running step is the last of some rank
  std::array<micro_state, 2> micro_;
  uint64_t waits_ = 0;
  std::vector<bool> dead_;
  uint32_t deaths_ = 0;             // notices so far
  std::vector<uint32_t> waiting_;   // ranks that the running exchange waits for
  std::vector<uint64_t> bad_seen_;  // per source: the last wait in which a slot was counted as stale
  std::vector<uint32_t> suspects_;
  error failure_;
  bool failed_ = false;

  // Any thread.
  std::atomic<bool> woken_{false};
};

}  // namespace troupe::kernels::ep
