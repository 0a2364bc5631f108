#include "kernels/ep/transport_group.hpp"

#include <mutex>

#include "kernels/ep/checks.hpp"
#include "kernels/ep/process_lane.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kernels::ep {
namespace {

class process_endpoint final : public ep_endpoint {
 public:
  explicit process_endpoint(std::shared_ptr<endpoint_core> core) : core_(std::move(core)) {
    transport::endpoint_address a;
    a.identity = core_->identity;
    a.host = core_->host;
    a.messages = core_->wire->address();
    a.shares = core_->shares;
    address_ = a.encode();
  }

  ~process_endpoint() override {
    end_current();
    // Groups that still live keep the core; without its links they are dead to their peers.
  }

  const std::string& address() const override { return address_; }

  result<std::unique_ptr<group>> connect(const group_view& view) override {
    std::lock_guard one(connecting_);
    if (auto ok = check(view); !ok) return fail(ok.error());
    end_current();
    std::lock_guard lock(core_->serial);
    epoch_ = view.epoch;
    TROUPE_TRY(auto made, process_lane::make(core_, view));
    {
      std::lock_guard l(state_);
      current_ = made;
    }
    std::vector<uint32_t> missing;
    auto met = made->connect(view, missing);
    {
      std::lock_guard l(state_);
      suspects_ = met ? std::vector<uint32_t>{} : missing;
    }
    if (!met) return fail(met.error());
    exchange_group::parts parts;
    parts.shape = view.shape;
    parts.epoch = view.epoch;
    parts.rank = view.rank;
    for (const auto& m : view.members) parts.incarnations.push_back(m.incarnation);
    parts.deadline = view.deadline;
    parts.wait = view.wait;
    parts.link = std::move(made);
    parts.counters = core_->counters;
    return std::make_unique<exchange_group>(std::move(parts));
  }

  std::vector<uint32_t> suspects() const override {
    std::lock_guard l(state_);
    return suspects_;
  }

  ep_counters counters() const override { return core_->counters->read(); }

 private:
  result<void> check(const group_view& view) const {
    if (auto ok = check_shape(view.shape); !ok) return ok;
    if (view.shape.ranks != view.members.size() || view.rank >= view.members.size())
      return fail(errc::invalid_argument, "group view: {} members, rank {}, a shape of {} ranks", view.members.size(),
                  view.rank, view.shape.ranks);
    if (view.deadline.count() <= 0 || view.connect_timeout.count() <= 0)
      return fail(errc::invalid_argument, "group view: deadline and connect_timeout must be positive");
    if (view.members[view.rank].address != address_ || view.members[view.rank].incarnation != core_->incarnation)
      return fail(errc::invalid_argument, "group view: member {} is not this process", view.rank);
    for (size_t r = 0; r < view.members.size(); ++r) {
      auto a = transport::endpoint_address::decode(view.members[r].address);
      if (!a) return fail(errc::invalid_argument, "group view: member {}: {}", r, a.error().message);
      if (r != view.rank && a->identity == core_->identity)
        return fail(errc::invalid_argument, "group view: members {} and {} are the same process", r, view.rank);
    }
    if (view.epoch <= epoch_)
      return fail(errc::stale, "group view: epoch {} is not newer than {}", view.epoch.value, epoch_.value);
    return {};
  }

  void end_current() {
    std::lock_guard l(state_);
    if (auto c = current_.lock()) {
      c->ended = true;
      c->signal();
    }
  }

  const std::shared_ptr<endpoint_core> core_;
  std::string address_;
  std::mutex connecting_;  // one connect at a time
  group_epoch epoch_;      // protected by connecting_
  mutable std::mutex state_;
  std::weak_ptr<lane> current_;     // protected by state_
  std::vector<uint32_t> suspects_;  // protected by state_
};

}  // namespace

result<std::unique_ptr<ep_endpoint>> make_ep_endpoint(const ep_endpoint_options& options) {
  auto core = std::make_shared<endpoint_core>();
  if (auto ok = core->open(options); !ok) return fail(ok.error());
  core->identity = entropy_seed();
  return std::make_unique<process_endpoint>(std::move(core));
}

}  // namespace troupe::kernels::ep
