// Putting a chain. See the top of client.hpp for the order of things.
#include <algorithm>
#include <utility>

#include "kv/store/client.hpp"
#include "kv/store/shares.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kv {

/// One put under way.
struct put_op : std::enable_shared_from_this<put_op> {
  client* self = nullptr;
  std::shared_ptr<const members> who;
  std::shared_ptr<void> held;
  put_chain_request request;
  reply<put_chain_reply> done;
  put_chain_reply out;
  std::optional<error> trouble;

  // A row of missing blocks that becomes an extent.
  struct piece {
    extent_info info;
    uint64_t at = 0;  // index into request.blocks
    slot_share share;
    uint64_t bytes = 0;  // of all shards
    enum class state_t : uint8_t { waiting, written, failed, settled } state = state_t::waiting;
  };
  std::vector<piece> pieces;
  size_t published = 0;  // pieces before it are settled
  bool publishing = false;
  size_t unsettled = 0;

  void start();
  void look();
  void plan(const std::vector<std::optional<block_place>>& places);
  void write(size_t i);
  void encoded(size_t i, result<shard_buffers> shards);
  void wrote(size_t i, result<extent_info> r);
  void publish_next();
  void publish(size_t i, size_t attempt);
  void recorded(size_t i, size_t attempt, put_reply r);
  void settle(size_t i);
  void give_up(size_t i);
  void end();
};

namespace {

result<void> check_request(const put_chain_request& r) {
  if (r.blocks.empty()) return fail(errc::invalid_argument, "put: no blocks");
  if (r.first + r.blocks.size() > r.chain.size())
    return fail(errc::invalid_argument, "put: blocks {} to {} of a chain of {} hashes", r.first,
                r.first + r.blocks.size(), r.chain.size());
  const uint32_t step = r.chain[0].tokens;
  for (size_t i = 0; i < r.chain.size(); ++i) {
    if (step == 0 || r.chain[i].tokens != uint64_t{step} * (i + 1))
      return fail(errc::invalid_argument, "put: hash {} counts {} tokens where {} are expected; give the whole chain",
                  i, r.chain[i].tokens, uint64_t{step} * (i + 1));
  }
  for (const auto& b : r.blocks) {
    if (b.empty() || b.size() > max_block_bytes)
      return fail(errc::invalid_argument, "put: a block of {} bytes; 1 to {} are allowed", b.size(), max_block_bytes);
  }
  return {};
}

// Expiry of something written now (policies/ttl.hpp); the index decides, this is what the footer says.
int64_t expiry_at_write(const client_options& o, traffic_class c, int64_t now) {
  const int64_t ttl = c == traffic_class::agent ? o.agent_ttl_s : o.chatbot_ttl_s;
  return (now + ttl + o.step_s - 1) / o.step_s * o.step_s;
}

}  // namespace

void client::put(put_chain_request request, reply<put_chain_reply> done) {
  auto refuse = [&](error e) { home_.post([done = std::move(done), e = std::move(e)] { done(fail(e)); }); };
  if (auto ok = check_request(request); !ok) return refuse(ok.error());
  if (open_ >= options_.max_calls)
    return refuse({errc::exhausted, fmt::format("put: {} calls are under way, which is the limit", open_)});
  ++stats_.puts;
  launch<put_op>(std::move(request), std::move(done));
}

// Ancestors first: after a crash no block outlives the one that it hangs on.
void put_op::start() {
  self->raise(who, request.chain, request.first + request.blocks.size(), policies::ttl_touch::write, request.traffic,
              [op = shared_from_this()](result<void> r) {
                if (!r) {
                  op->trouble = r.error();
                  return op->end();
                }
                op->look();
              });
}

void put_op::look() {
  auto chain = request.chain;
  chain.resize(request.first + request.blocks.size());
  self->lookup(std::move(chain), request.first,
               [op = shared_from_this()](result<std::vector<std::optional<block_place>>> r) {
                 if (!r) {
                   op->trouble = r.error();
                   return op->end();
                 }
                 op->plan(*r);
               });
}

void put_op::plan(const std::vector<std::optional<block_place>>& places) {
  const auto& o = self->options_;
  const int64_t now = self->wall_.now();
  for (const auto& p : places) out.present += p ? 1 : 0;
  for (const auto& share : shares_of(*who, request.chain, request.first, request.first + request.blocks.size())) {
    for (uint64_t at = share.first; at < share.first + share.count;) {
      uint64_t to = at;
      while (to < share.first + share.count && !places[to - request.first]) ++to;
      if (to == at) {
        ++at;
        continue;
      }
      piece p;
      p.at = at - request.first;
      p.share = share;
      p.info.id = self->next_id();
      p.info.first = at;
      p.info.count = static_cast<uint32_t>(to - at);
      for (uint64_t b = at; b < to; ++b) {
        p.info.hashes.push_back(request.chain[b]);
        p.info.lengths.push_back(static_cast<uint32_t>(request.blocks[b - request.first].size()));
      }
      p.info.block_bytes = *std::max_element(p.info.lengths.begin(), p.info.lengths.end());
      if (std::all_of(p.info.lengths.begin(), p.info.lengths.end(),
                      [&](uint32_t n) { return n == p.info.block_bytes; }))
        p.info.lengths.clear();
      if (at > 0) p.info.parent = request.chain[at - 1];
      p.info.slot_first = request.chain[share.slot * slot_blocks];
      p.info.data = static_cast<uint8_t>(o.data);
      p.info.parity = static_cast<uint8_t>(o.parity);
      p.info.traffic = request.traffic;
      p.info.written = now;
      p.info.expiry = expiry_at_write(o, request.traffic, now);
      p.info.epoch = who->epoch;
      p.info.scheme = o.scheme;
      p.bytes = shard_buffer_bytes(shard_bytes(p.info)) * p.info.shards();
      pieces.push_back(std::move(p));
      at = to;
    }
  }
  unsettled = pieces.size();
  if (pieces.empty()) return end();
  for (size_t i = 0; i < pieces.size(); ++i)
    self->writes_.enter(pieces[i].bytes, [op = shared_from_this(), i] { op->write(i); });
}

void put_op::write(size_t i) {
  if (trouble) return wrote(i, fail(error{errc::cancelled, "an earlier block could not be stored"}));
  // Copying and encoding are worth another core; on a full worker they run here.
  auto work = [op = shared_from_this(), i]() mutable {
    auto& p = op->pieces[i];
    auto shards = std::make_shared<result<shard_buffers>>(
        make_shards(p.info, std::span(op->request.blocks).subspan(p.at, p.info.count), op->self->pool_));
    executor& home = op->self->home_;
    // Moved: the last reference must not go on the worker's thread.
    home.post([op = std::move(op), i, shards = std::move(shards)] { op->encoded(i, std::move(*shards)); });
  };
  if (!self->compute_.submit(work)) work();
}

void put_op::encoded(size_t i, result<shard_buffers> shards) {
  if (!shards) return wrote(i, fail(shards.error()));
  // The memory goes back to the pool when the last target has let go of it.
  client* c = self;
  std::shared_ptr<const shard_buffers> kept(new shard_buffers(std::move(*shards)),
                                            [c, held = held](shard_buffers* b) mutable {
                                              c->pool_.give_back(std::move(b->memory));
                                              delete b;
                                              executor& home = c->home_;  // tickets belong to the executor
                                              home.post([held = std::move(held)] {});
                                            });
  crash_point(self->options_.crash, "put.encoded");
  write_shards(pieces[i].info, std::move(kept), *who, self->home_,
               [op = shared_from_this(), i](result<extent_info> r) { op->wrote(i, std::move(r)); });
}

void put_op::wrote(size_t i, result<extent_info> r) {
  self->writes_.leave(pieces[i].bytes);
  if (r) {
    crash_point(self->options_.crash, "put.shards_written");
    pieces[i].info = std::move(*r);
    pieces[i].state = piece::state_t::written;
  } else {
    if (!trouble || (trouble->code == errc::cancelled && r.error().code != errc::cancelled)) trouble = r.error();
    pieces[i].state = piece::state_t::failed;
  }
  publish_next();
}

// In the order of the chain, so that presence stays monotone; pieces of one slot's owner one after the other.
void put_op::publish_next() {
  while (!publishing && published < pieces.size()) {
    const size_t i = published;
    if (pieces[i].state == piece::state_t::waiting) return;
    ++published;
    if (pieces[i].state == piece::state_t::failed) {
      settle(i);
    } else if (trouble) {
      give_up(i);  // a hole would be in front of it
    } else {
      publishing = true;
      publish(i, 0);
    }
  }
}

void put_op::publish(size_t i, size_t attempt) {
  const auto& owners = pieces[i].share.owners;
  if (attempt >= owners.size()) {
    if (!trouble) trouble = error{errc::unavailable, "the store has no index owner"};
    publishing = false;
    give_up(i);
    return publish_next();
  }
  owners[attempt]->put({pieces[i].info}, [op = shared_from_this(), i, attempt](result<put_reply> r) {
    if (r) return op->recorded(i, attempt, std::move(*r));
    const bool last = attempt + 1 >= op->pieces[i].share.owners.size();
    if (!last && r.error().code != errc::invalid_argument) return op->publish(i, attempt + 1);
    op->trouble = r.error();
    op->publishing = false;
    op->give_up(i);
    op->publish_next();
  });
}

void put_op::recorded(size_t i, size_t attempt, put_reply r) {
  crash_point(self->options_.crash, "put.indexed");
  piece& p = pieces[i];
  TROUPE_CHECK(r.winners.size() == 1 && r.recorded.size() == 1 && r.winners[0].size() == p.info.count,
               "an owner answered for {} extents", r.winners.size());
  for (uint32_t b = 0; b < p.info.count; ++b) {
    if (r.winners[0][b].extent == p.info.id) {
      ++out.stored;
      out.block_bytes += p.info.length(b);
    } else {
      ++out.present;  // another writer came first
    }
  }
  const bool ours = r.recorded[0];
  if (ours) ++out.extents;
  std::vector<slot_share> one{p.share};
  tell_replicas(one, {0}, *p.share.owners[attempt], r.changes, [op = shared_from_this(), i, ours] {
    crash_point(op->self->options_.crash, "put.replicated");
    op->publishing = false;
    if (ours) {
      op->settle(i);
    } else {
      op->give_up(i);
    }
    op->publish_next();
  });
}

// The shards of a piece that the index does not name are of no use.
void put_op::give_up(size_t i) {
  remove_shards(pieces[i].info, *who, self->home_, [op = shared_from_this(), i] { op->settle(i); });
}

void put_op::settle(size_t i) {
  pieces[i].state = piece::state_t::settled;
  if (--unsettled == 0) end();
}

void put_op::end() {
  self->stats_.bytes_written += out.block_bytes;
  auto answer = std::move(done);
  if (trouble) {
    answer(fail(std::move(*trouble)));
  } else {
    answer(out);
  }
}

}  // namespace troupe::kv
