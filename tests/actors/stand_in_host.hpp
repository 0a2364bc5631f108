// A rank's host around a stand-in engine: loading, regrouping and pulls take virtual time.
#pragma once

#include "tests/actors/stand_in.hpp"

namespace troupe::actors {

/// `missing` is asked with the view of the group: which of its ranks do not show up.
class stand_in_host final : public rank_host {
 public:
  using missing_fn = std::function<std::vector<uint32_t>(const group_view&)>;
  stand_in_host(sim::agenda& a, stand_in_options o, std::string address, missing_fn missing)
      : agenda_(a), options_(std::move(o)), address_(std::move(address)), missing_(std::move(missing)) {
    if (options_.memories) (*options_.memories)[address_] = this;
  }
  ~stand_in_host() override {
    if (options_.memories) options_.memories->erase(address_);
    stop();
  }

  void open(kernels::engine::sink sink, std::function<void(result<std::string>)> done) override {
    sink_ = std::move(sink);
    later(options_.load, [this, done] { done(address_); });
  }

  void regroup(const group_view& view, std::function<void(result<void>)> done) override {
    later(options_.regroup, [this, view, done] {
      if (options_.regroup_fails && options_.regroup_fails(view))
        return done(fail(errc::timeout, "rank 1 did not answer"));
      view_ = view;
      if (!engine_) {
        engine_ = std::make_unique<stand_in_engine>(agenda_, options_, sink_, [this] { return missing_(view_); });
        engine_->enter(first_placement(view), 0);
        engine_->notice_when_idle();
      } else {
        (void)engine_->regroup(nullptr, first_placement(view));
      }
      done({});
    });
  }

  kernels::engine* engine() override { return engine_.get(); }
  stand_in_engine* stand_in() { return engine_.get(); }

  peer_memory memory() const override {
    return options_.memories ? peer_memory{address_, "pages", "states"} : peer_memory{};
  }

  page_memory pages() override {
    if (!engine_) return {};
    return {std::as_writable_bytes(std::span(*engine_->memory)), engine_->memory};
  }

  /// Page by page in virtual time, out of the source's memory as it is by then; a source that is gone is noticed late.
  void pull(const transfer_grant& from, const std::vector<kernels::page_id>& pages, uint32_t place,
            std::function<void(result<uint64_t>)> done) override {
    if (options_.pull_fails)
      if (auto r = options_.pull_fails(); !r) return later(options_.pull, [r, done] { done(fail(r.error())); });
    TROUPE_CHECK(from.pages.size() == pages.size(), "{} pages into {}", from.pages.size(), pages.size());
    pull_page(from, pages, place, done, 0);
  }

  snapshot_memory snapshots() const override {
    return options_.memories && options_.limits.snapshots > 0 ? snapshot_memory{address_, "snapshots"}
                                                              : snapshot_memory{};
  }

  /// The stand-in store says the snapshot itself as its offset.
  void pull_snapshot(const snapshot_source& from, uint32_t place, std::function<void(result<void>)> done) override {
    later(options_.pull, [=, this] {
      engine_->shots.at(place) = from.offset;
      if (static_cast<uint32_t>(from.offset) != from.crc)
        return done(fail(errc::corrupt, "stand-in: not what was kept"));
      done({});
    });
  }

  void stop() override {
    *stopped_ = true;
    if (engine_) engine_->stop();
  }

 private:
  kernels::ep::placement first_placement(const group_view& view) const {
    const auto ranks = static_cast<uint32_t>(view.members.size());
    const uint32_t experts = options_.facts.experts,
                   layers = options_.facts.encoder_layers + options_.facts.decoder_layers;
    const uint32_t per_rank = std::min(experts, (experts + ranks - 1) / ranks + options_.redundant_experts);
    kernels::ep::placement p;
    p.version = kernels::first_placement_version(view.epoch);
    p.copies.assign(layers,
                    *kernels::ep::copies_of(kernels::ep::first_slots(ranks, experts, per_rank), ranks, experts));
    return p;
  }

  void pull_page(transfer_grant from, std::vector<kernels::page_id> pages, uint32_t place,
                 std::function<void(result<uint64_t>)> done, size_t next) {
    later(next == 0 ? options_.pull : options_.per_page, [=, this] {
      const auto source = options_.memories->find(from.memory.address);
      if (source == options_.memories->end() || !source->second->engine_)
        return later(options_.deadline, [done] { done(fail(errc::peer_lost, "stand-in: the source is gone")); });
      const auto& there = *source->second->engine_;
      if (next < pages.size()) {
        engine_->content[pages[next].value] = there.content[from.pages[next].page.value];
        return pull_page(from, pages, place, done, next + 1);
      }
      engine_->states[place] = there.states[from.state_place];
      bool same = engine_->states[place] == from.state_checksum;
      for (size_t i = 0; i < pages.size(); ++i)
        same = same && engine_->content[pages[i].value] == from.pages[i].checksum;
      if (!same) return done(fail(errc::corrupt, "stand-in: a checksum differs"));
      done(pages.size());
    });
  }

  void later(nanoseconds d, std::function<void()> f) {
    agenda_.after(d, [stopped = stopped_, f = std::move(f)] {
      if (!*stopped) f();
    });
  }

  sim::agenda& agenda_;
  stand_in_options options_;
  std::string address_;
  missing_fn missing_;
  kernels::engine::sink sink_;
  group_view view_;
  std::unique_ptr<stand_in_engine> engine_;
  std::shared_ptr<bool> stopped_ = std::make_shared<bool>(false);
};

}  // namespace troupe::actors
