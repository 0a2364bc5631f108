#include "kernels/ep/local_group.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>

#include "kernels/ep/checks.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels::ep {
namespace {

class local_group final : public group {
 public:
  explicit local_group(const group_shape& shape) : shape_(shape) {
    for (micro_state& m : micro_) m.notes.reserve(shape.notes);
  }

  const group_shape& shape() const override { return shape_; }
  uint32_t rank() const override { return 0; }

  result<step_header> begin_step(const step_header& mine) override {
    std::unique_lock lock(mutex_);
    for (const micro_state& m : micro_)
      if (m.at != phase::idle)
        return fail(errc::invalid_argument, "begin_step: layer {} was dispatched and not combined", m.layer);
    if (!mine.has_work && !mine.leaving && !mine.moving && mine.flip_step == step_header::no_flip && !ended_) {
      changed_.wait(lock, [&] { return woken_ || ended_; });
      woken_ = false;
    }
    if (ended_) return fail(errc::cancelled, "begin_step: the group has ended");
    return mine;
  }

  void wake() override {
    std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  }

  // Under the lock: the engine may destroy the group as soon as its call returns.
  void end() override {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  result<void> dispatch_send(uint32_t micro, uint32_t layer, std::span<const float> x, std::span<const route> routes,
                             uint32_t k) override {
    if (ended()) return fail(errc::cancelled, "dispatch: the group has ended");
    auto rows = check_dispatch(shape_, micro, x, routes, k);
    if (!rows) return fail(std::move(rows.error()));
    micro_state& m = micro_[micro];
    if (m.at != phase::idle)
      return fail(errc::invalid_argument, "dispatch: layer {} was dispatched and not combined", m.layer);
    m.items.clear();
    for (uint32_t row = 0; row < *rows; ++row)
      for (uint32_t i = 0; i < k; ++i) {
        const route& r = routes[size_t{row} * k + i];
        m.items.push_back({row, r.expert, r.weight});
      }
    m.layer = layer;
    m.rows = *rows;
    m.k = k;
    m.x = x;
    m.at = phase::dispatched;
    return {};
  }

  result<received> dispatch_wait(uint32_t micro) override {
    if (ended()) return fail(errc::cancelled, "dispatch: the group has ended");
    if (auto ok = check_micro(shape_, micro); !ok) return fail(ok.error());
    micro_state& m = micro_[micro];
    if (m.at != phase::dispatched) return fail(errc::invalid_argument, "dispatch: there is nothing to wait for");
    m.at = phase::received;
    return received{m.x, m.items};
  }

  result<void> combine_send(uint32_t micro, uint32_t layer, std::span<const float> y, std::span<float> out,
                            std::span<const uint32_t> notes) override {
    if (ended()) return fail(errc::cancelled, "combine: the group has ended");
    if (auto ok = check_micro(shape_, micro); !ok) return ok;
    micro_state& m = micro_[micro];
    if (m.at != phase::received || layer != m.layer)
      return fail(errc::invalid_argument, "combine: layer {} was not dispatched last", layer);
    if (auto ok = check_combine(shape_, y, m.items.size(), out, m.rows, m.k, notes.size()); !ok) return ok;
    // Items are (row, k) in order, which is the layout of out.
    std::copy(y.begin(), y.end(), out.begin());
    m.notes.assign(notes.begin(), notes.end());
    m.at = phase::combined;
    return {};
  }

  result<void> combine_wait(uint32_t micro) override {
    if (ended()) return fail(errc::cancelled, "combine: the group has ended");
    if (auto ok = check_micro(shape_, micro); !ok) return ok;
    if (micro_[micro].at != phase::combined)
      return fail(errc::invalid_argument, "combine: there is nothing to wait for");
    micro_[micro].at = phase::idle;
    return {};
  }

  std::span<const uint32_t> notes(uint32_t micro, uint32_t) const override { return micro_[micro].notes; }

  std::vector<uint32_t> suspects() const override { return {}; }

 private:
  bool ended() {
    std::lock_guard lock(mutex_);
    return ended_;
  }

  enum class phase : uint8_t { idle, dispatched, received, combined };
  struct micro_state {
    phase at = phase::idle;
    std::vector<received::item> items;
    std::vector<uint32_t> notes;
    std::span<const float> x;
    uint32_t layer = 0, rows = 0, k = 0;
  };

  const group_shape shape_;
  // Owned by the engine thread.
  std::array<micro_state, 2> micro_;
  // Protected by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false, ended_ = false;
};

}  // namespace

result<std::unique_ptr<group>> make_local_group(const group_shape& shape) {
  if (auto ok = check_shape(shape); !ok) return fail(ok.error());
  if (shape.ranks != 1) return fail(errc::invalid_argument, "a local group has one rank, not {}", shape.ranks);
  return std::make_unique<local_group>(shape);
}

placement contiguous_placement(uint32_t ranks, uint32_t layers, uint32_t experts) {
  TROUPE_CHECK(ranks > 0, "placement over {} ranks", ranks);
  placement p;
  p.copies.resize(layers);
  for (auto& layer : p.copies) {
    layer.resize(experts);
    for (uint32_t e = 0; e < experts; ++e) layer[e] = {static_cast<uint32_t>(uint64_t{e} * ranks / experts)};
  }
  return p;
}

}  // namespace troupe::kernels::ep
