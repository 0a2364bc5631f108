#include "runtime/sim/events/log.hpp"

#include <algorithm>
#include <msgpack.hpp>
#include <ostream>
#include <string_view>

#include "runtime/base/check.hpp"

namespace troupe::sim {
namespace {

constexpr uint8_t end_record = 254, name_record = 255;
constexpr uint32_t log_version = 1;
constexpr std::string_view log_magic = "troupe events";

// What msgpack writes into.
struct string_sink {
  std::string& to;
  void write(const char* data, size_t n) { to.append(data, n); }
};

}  // namespace

void event_hash::add(const event& e) {
  mix(static_cast<uint64_t>(e.at));
  mix(static_cast<uint64_t>(e.kind) << 32 | e.actor);
  for (size_t i = 0; i < spec_of(e.kind).count; ++i) mix(e.v[i]);
}

actor_number event_log::actor(const std::string& name) {
  const auto [at, is_new] = numbers_.emplace(name, static_cast<actor_number>(names_.size()));
  if (is_new) names_.push_back(name), rings_.emplace_back();
  return at->second;
}

void event_log::record(const event& e) {
  TROUPE_CHECK(e.at >= now_, "event at {} ns after one at {} ns: {}", e.at, now_, spec_of(e.kind).name);
  TROUPE_CHECK(e.actor < names_.size(), "{} of actor {}, there are {}", spec_of(e.kind).name, e.actor, names_.size());
  now_ = e.at;
  hash_.add(e);
  auto& r = rings_[e.actor];
  if (kept_ > 0) {
    if (r.events.size() < kept_) {
      r.events.emplace_back(count_, e);
    } else {
      r.events[r.next] = {count_, e};
      r.next = (r.next + 1) % kept_;
    }
  }
  ++count_;
  for (auto* s : sinks_) s->on(e);
}

std::vector<event> event_log::last(actor_number who) const {
  std::vector<event> out;
  const auto& r = rings_[who];
  for (size_t i = 0; i < r.events.size(); ++i) out.push_back(r.events[(r.next + i) % r.events.size()].second);
  return out;
}

std::vector<std::string> event_log::story(const std::vector<actor_number>& who, size_t most) const {
  std::vector<std::pair<uint64_t, event>> all;
  std::vector<actor_number> seen;
  for (const auto a : who) {
    if (a >= rings_.size() || std::find(seen.begin(), seen.end(), a) != seen.end()) continue;
    seen.push_back(a);
    all.insert(all.end(), rings_[a].events.begin(), rings_[a].events.end());
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (size_t i = all.size() > most ? all.size() - most : 0; i < all.size(); ++i)
    out.push_back(to_text(all[i].second, names_[all[i].second.actor]));
  return out;
}

event_writer::event_writer(std::ostream& out, const event_log& log, uint64_t seed) : out_(out), log_(log) {
  string_sink sink{buffer_};
  msgpack::packer<string_sink> p(sink);
  p.pack_array(3).pack(log_magic).pack(log_version).pack(seed);
}

void event_writer::on(const event& e) {
  string_sink sink{buffer_};
  msgpack::packer<string_sink> p(sink);
  const auto name_of = [&](actor_number a) {
    if (a >= log_.actors()) return;  // a number that only looks like one
    if (named_.size() <= a) named_.resize(a + 1);
    if (named_[a]) return;
    named_[a] = true;
    p.pack_array(3).pack(name_record).pack(a).pack(log_.name(a));
  };
  const auto& spec = spec_of(e.kind);
  name_of(e.actor);
  for (size_t i = 0; i < spec.count; ++i)
    if (std::string_view(spec.fields[i]).starts_with("actor")) name_of(static_cast<actor_number>(e.v[i]));
  p.pack_array(3 + spec.count).pack(static_cast<uint8_t>(e.kind)).pack(e.at).pack(e.actor);
  for (size_t i = 0; i < spec.count; ++i) p.pack(e.v[i]);
  hash_.add(e);
  ++count_;
  if (buffer_.size() >= 64 << 10) flush();
}

void event_writer::flush() {
  out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  buffer_.clear();
}

result<void> event_writer::finish() {
  string_sink sink{buffer_};
  msgpack::packer<string_sink> p(sink);
  p.pack_array(3).pack(end_record).pack(count_).pack(hash_.value());
  flush();
  out_.flush();
  if (!out_) return fail(errc::io, "the event log could not be written to its end; is the disk full?");
  return {};
}

result<recorded_run> read_events(std::string_view bytes, const std::string& name) {
  recorded_run out;
  event_hash hash;
  size_t at = 0;
  int64_t now = 0;
  bool begun = false, ended = false;
  const auto bad = [&](size_t where, std::string_view what) {
    return fail(errc::corrupt, "{}: byte {}: {}", name, where, what);
  };
  if (bytes.size() > (size_t{1} << 31)) return bad(0, "more than 2 GiB");
  while (at < bytes.size()) {
    const size_t start = at;
    if (ended) return bad(start, "something follows the end");
    msgpack::object_handle handle;
    try {
      // Limits: the longest record has 9 members, names have at most 4 KiB; no maps, no nesting.
      handle = msgpack::unpack(
          bytes.data(), bytes.size(), at, [](msgpack::type::object_type, size_t, void*) { return true; }, nullptr,
          msgpack::unpack_limit(9, 0, 4'096, 0, 0, 2));
    } catch (const std::exception&) {  // cut short, or no msgpack
      return bad(start, "is cut short or damaged");
    }
    const auto& o = handle.get();
    if (o.type != msgpack::type::ARRAY || o.via.array.size < 3) return bad(start, "a record expected");
    const auto* v = o.via.array.ptr;
    const uint32_t n = o.via.array.size;
    const auto number = [&](uint32_t i, uint64_t most, uint64_t& to) {
      if (v[i].type != msgpack::type::POSITIVE_INTEGER || v[i].via.u64 > most) return false;
      to = v[i].via.u64;
      return true;
    };
    const auto text = [&](uint32_t i) {
      return v[i].type == msgpack::type::STR ? std::string_view(v[i].via.str.ptr, v[i].via.str.size) : "";
    };
    uint64_t kind = 0, a = 0, b = 0;
    if (!begun) {
      if (n != 3 || text(0) != log_magic) return bad(start, "is no event log");
      if (!number(1, UINT32_MAX, a) || a != log_version)
        return bad(start, "has a version that this program cannot read");
      if (!number(2, UINT64_MAX, out.seed)) return bad(start, "has no seed");
      begun = true;
      continue;
    }
    if (!number(0, 255, kind)) return bad(start, "a kind expected");
    if (kind == name_record) {
      // Actors are numbered as they appear in the run, so a number far beyond the file's size is damage.
      if (n != 3 || !number(1, bytes.size(), a) || v[2].type != msgpack::type::STR)
        return bad(start, "a name expected");
      if (out.names.size() <= a) out.names.resize(a + 1);
      out.names[a] = text(2);
    } else if (kind == end_record) {
      if (n != 3 || !number(1, UINT64_MAX, a) || !number(2, UINT64_MAX, b))
        return bad(start, "a count and a hash expected");
      if (a != out.events.size() || b != hash.value()) return bad(start, "its count or hash does not fit its events");
      out.hash = b, ended = true;
    } else {
      if (kind >= event_kinds) return bad(start, "a kind of event that this program does not know");
      event e;
      e.kind = static_cast<event_kind>(kind);
      const auto& spec = spec_of(e.kind);
      if (n != 3u + spec.count || !number(1, INT64_MAX, a) || !number(2, UINT32_MAX, b))
        return bad(start, std::string(spec.name) + " with other members");
      e.at = static_cast<int64_t>(a), e.actor = static_cast<actor_number>(b);
      if (e.at < now) return bad(start, "time goes back");
      if (e.actor >= out.names.size()) return bad(start, "an actor without a name");
      for (size_t i = 0; i < spec.count; ++i)
        if (!number(static_cast<uint32_t>(3 + i), UINT64_MAX, e.v[i])) return bad(start, "a number expected");
      now = e.at;
      hash.add(e);
      out.events.push_back(e);
    }
  }
  if (!ended) return bad(bytes.size(), "is cut short: there is no end record");
  return out;
}

}  // namespace troupe::sim
