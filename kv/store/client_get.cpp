// Reading a chain. See the top of client.hpp for the order of things.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "kv/store/client.hpp"
#include "kv/store/shares.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kv {

/// One get under way.
struct get_op : std::enable_shared_from_this<get_op> {
  client* self = nullptr;
  std::shared_ptr<const members> who;
  std::shared_ptr<void> held;
  get_chain_request request;
  reply<get_chain_reply> done;
  get_chain_reply out;
  nanoseconds asked{0};
  std::vector<std::pair<owner*, uint64_t>> leases;
  std::vector<std::optional<block_place>> places;
  std::unordered_map<extent_id, block_index::extent_entry> extents;

  struct piece {
    std::shared_ptr<const extent_info> info;
    uint64_t first = 0;  // position of its first wanted block, counted from request.first
    std::vector<wanted_block> wanted;
    std::vector<uint64_t> positions;
    uint64_t bytes = 0;
    std::shared_ptr<extent_read> read;
    bool entered = false, ended = false;  // entered: let in by the gate
  };
  std::vector<piece> pieces;
  size_t open = 0;
  uint64_t limit = 0;            // blocks from here on are not served, whatever comes
  std::optional<error> cut_why;  // the deadline has come
  bool answered = false;

  void start();
  void take(owner& o, const std::vector<slot_share>& shares, const std::vector<size_t>& which, lookup_reply r);
  void plan();
  void stop_at(uint64_t at, error why);
  void read(size_t i);
  void ended(size_t i, extent_read_reply r);
  void cut(const error& why);
  void end();
};

void client::get(get_chain_request request, reply<get_chain_reply> done) {
  auto refuse = [&](error e) { home_.post([done = std::move(done), e = std::move(e)] { done(fail(e)); }); };
  if (request.into.empty() || request.first + request.into.size() > request.chain.size())
    return refuse({errc::invalid_argument, fmt::format("get: blocks {} to {} of a chain of {} hashes", request.first,
                                                       request.first + request.into.size(), request.chain.size())});
  if (open_ >= options_.max_calls)
    return refuse({errc::exhausted, fmt::format("get: {} calls are under way, which is the limit", open_)});
  ++stats_.gets;
  launch<get_op>(std::move(request), std::move(done));
}

void get_op::start() {
  asked = self->home_.now();
  limit = request.into.size();
  places.resize(request.into.size());
  auto shares = std::make_shared<const std::vector<slot_share>>(
      shares_of(*who, request.chain, request.first, request.first + request.into.size()));
  owner_question<lookup_reply> q;
  auto op = shared_from_this();
  q.ask = [op, shares](owner& o, const std::vector<size_t>& which, reply<lookup_reply> back) {
    lookup_request r;
    r.lease = true;
    for (size_t i : which) {
      const auto& s = (*shares)[i];
      for (uint32_t b = 0; b < s.count; ++b) r.hashes.push_back(op->request.chain[s.first + b]);
    }
    o.lookup(std::move(r), std::move(back));
  };
  q.take = [op, shares](owner& o, const std::vector<size_t>& which, lookup_reply r) {
    op->take(o, *shares, which, std::move(r));
  };
  if (request.deadline > nanoseconds{0}) {
    std::weak_ptr<get_op> weak = op;
    self->home_.post_after(request.deadline, [weak] {
      if (auto late = weak.lock()) late->cut({errc::timeout, "get: the deadline came before the last block"});
    });
  }
  ask_owners<lookup_reply>(shares, std::move(q), [op](result<void> r) {
    if (!r) op->stop_at(0, r.error());
    op->plan();
  });
}

void get_op::take(owner& o, const std::vector<slot_share>& shares, const std::vector<size_t>& which, lookup_reply r) {
  if (r.lease != 0) leases.emplace_back(&o, r.lease);
  size_t at = 0;
  for (size_t i : which) {
    for (uint32_t b = 0; b < shares[i].count; ++b) places[shares[i].first + b - request.first] = r.blocks[at++];
  }
  for (auto& e : r.extents) extents.emplace(e.info.id, std::move(e));
}

void get_op::stop_at(uint64_t at, error why) {
  if (at >= limit) return;
  limit = at;
  out.stopped = std::move(why);
  // What lies behind the hole is of no use any more.
  for (auto& p : pieces) {
    if (p.first >= limit && p.read && !p.ended) p.read->cancel();
  }
}

void get_op::plan() {
  if (answered) {
    for (auto& [o, lease] : leases) o->release(lease);
    return;
  }
  std::unordered_map<extent_id, size_t> known;
  for (uint64_t at = 0; at < limit; ++at) {
    const auto& where = places[at];
    const auto e = where ? extents.find(where->extent) : extents.end();
    if (e == extents.end()) {
      stop_at(at, {errc::not_found, fmt::format("get: block {} is not in the store", request.first + at)});
      break;
    }
    const extent_info& info = e->second.info;
    if (info.scheme != self->options_.scheme || where->ordinal >= info.count ||
        info.hashes[where->ordinal] != request.chain[request.first + at]) {
      stop_at(at, {errc::corrupt, fmt::format("get: the index has another block in the place of block {}; run scrub",
                                              request.first + at)});
      break;
    }
    if (info.length(where->ordinal) != request.into[at].size()) {
      stop_at(at, {errc::invalid_argument, fmt::format("get: block {} has {} bytes, the buffer {}", request.first + at,
                                                       info.length(where->ordinal), request.into[at].size())});
      break;
    }
    auto [it, fresh] = known.emplace(where->extent, pieces.size());
    if (fresh) {
      piece p;
      p.info = std::make_shared<const extent_info>(info);
      p.first = at;
      pieces.push_back(std::move(p));
    }
    piece& p = pieces[it->second];
    p.wanted.push_back({where->ordinal, request.into[at]});
    p.positions.push_back(at);
    p.bytes += request.into[at].size();
  }
  open = pieces.size() + 1;
  for (size_t i = 0; i < pieces.size(); ++i)
    self->reads_.enter(pieces[i].bytes, [op = shared_from_this(), i] { op->read(i); });
  if (--open == 0) end();
}

void get_op::read(size_t i) {
  piece& p = pieces[i];
  if (p.ended) return self->reads_.leave(p.bytes);  // the deadline came first
  p.entered = true;
  if (p.first >= limit) {
    p.ended = true;
    self->reads_.leave(p.bytes);
    if (--open == 0) end();
    return;
  }
  extent_read_request r;
  r.info = p.info;
  r.wanted = p.wanted;
  r.hedge_after = self->options_.hedge_after;
  r.may_hedge = [c = self](uint64_t bytes) { return c->may_hedge(bytes); };
  ++out.extents;
  p.read = extent_read::start(std::move(r), *who, self->home_,
                              [op = shared_from_this(), i](extent_read_reply got) { op->ended(i, std::move(got)); });
}

void get_op::ended(size_t i, extent_read_reply r) {
  piece& p = pieces[i];
  p.ended = true;
  p.read = nullptr;
  self->reads_.leave(p.bytes);
  out.decoded += r.decoded;
  out.hedged += r.hedged ? 1 : 0;
  if (!r.bad_shards.empty()) out.damaged.push_back(p.info->id);
  for (size_t w = 0; w < r.good.size(); ++w) {
    if (r.good[w]) continue;
    error why = r.trouble.value_or(error{errc::internal, "get: a block is missing without a reason"});
    if (why.code == errc::cancelled && cut_why) why = *cut_why;
    stop_at(p.positions[w], std::move(why));
    break;
  }
  if (--open == 0) end();
}

// The deadline: what is there is served, the rest is ended at once.
void get_op::cut(const error& why) {
  if (answered) return;
  cut_why = why;
  if (pieces.empty()) {  // the owners have not answered
    stop_at(0, why);
    return end();
  }
  ++open;
  for (auto& p : pieces) {
    if (p.ended || p.entered) continue;
    stop_at(p.first, why);
    p.ended = true;
    --open;
  }
  for (auto& p : pieces) {
    if (p.read && !p.ended) p.read->cancel();
  }
  if (--open == 0) end();
}

void get_op::end() {
  if (answered) return;
  answered = true;
  out.blocks = limit;
  for (auto& [o, lease] : leases) o->release(lease);
  if (out.blocks > 0 && self->home_.now() - asked >= self->options_.lease) {
    // Nobody promises any more that these are the bytes of the extents that were looked up.
    ++self->stats_.stale;
    out.blocks = 0;
    out.stopped = error{errc::stale, "get: the read took longer than its lease; read fewer blocks at a time"};
  }
  uint64_t bytes = 0;
  for (size_t i = 0; i < out.blocks; ++i) bytes += request.into[i].size();
  self->stats_.bytes_read += bytes;
  self->stats_.decoded += out.decoded;
  auto answer = std::move(done);
  answer(out);
  if (out.blocks == 0) return;
  // After the answer: a read extends what was read and everything above it.
  self->raise(who, request.chain, request.first + out.blocks, policies::ttl_touch::read, request.traffic,
              [op = shared_from_this()](result<void>) {});
}

}  // namespace troupe::kv
