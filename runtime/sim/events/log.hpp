// The record of a run: takes events, hashes them, keeps the last ones of every actor, and hands them on.
#pragma once

#include <cstdint>
#include <deque>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/sim/events/event.hpp"

namespace troupe::sim {

/// Somebody who looks at every event, in order. Called on the log's thread; must not record events itself.
class event_sink {
 public:
  virtual ~event_sink() = default;
  virtual void on(const event& e) = 0;
};

/// Order-sensitive hash of a sequence of events, over integers only: the same in every build and on every machine.
class event_hash {
 public:
  void add(const event& e);
  /// Of everything added so far.
  uint64_t value() const { return h_; }

 private:
  void mix(uint64_t x) {
    h_ = (h_ ^ x) * 0x9e3779b97f4a7c15u;
    h_ ^= h_ >> 29;
  }
  uint64_t h_ = 0x243f6a8885a308d3u;  // digits of pi
};

/// One run's. Not thread safe.
class event_log {
 public:
  /// `kept` events of each actor stay for violation reports; 64 bytes each.
  explicit event_log(size_t kept = 24) : kept_(kept) {}

  /// The number of the actor of that name, a new one at the first time. Names are unique for the whole run.
  actor_number actor(const std::string& name);
  /// "world" for 0.
  const std::string& name(actor_number who) const { return names_[who]; }
  size_t actors() const { return names_.size(); }

  /// `sink` sees every event from now on and must outlive the log's use.
  void add(event_sink& sink) { sinks_.push_back(&sink); }
  /// Times never go back (else an assertion), and every number names an actor.
  void record(const event& e);

  uint64_t count() const { return count_; }
  /// event_log_hash of the summary.
  uint64_t hash() const { return hash_.value(); }
  /// The last events of an actor, oldest first.
  std::vector<event> last(actor_number who) const;
  /// The last events of any of these actors, oldest first, in the order in which they happened, at most `most`.
  std::vector<std::string> story(const std::vector<actor_number>& who, size_t most) const;

 private:
  struct ring {
    std::vector<std::pair<uint64_t, event>> events;  // by number of the event; oldest at `next` when full
    size_t next = 0;
  };
  size_t kept_;
  std::vector<std::string> names_{"world"};
  std::map<std::string, actor_number> numbers_;
  std::vector<ring> rings_{1};
  std::vector<event_sink*> sinks_;
  event_hash hash_;
  uint64_t count_ = 0;
  int64_t now_ = 0;
};

/// Writes events as msgpack: arrays of [kind, at, actor, numbers...], first ["troupe events", version, seed], before an
/// actor's first event [255, number, name], last [254, count, hash]. Events pass through a buffer of 64 KiB; `finish`
/// flushes.
class event_writer : public event_sink {
 public:
  /// Both outlive the writer.
  event_writer(std::ostream& out, const event_log& log, uint64_t seed);
  void on(const event& e) override;
  /// The trailer. Error io: the stream did not take everything (a full disk).
  result<void> finish();

 private:
  void flush();
  std::ostream& out_;
  const event_log& log_;
  std::string buffer_;
  std::vector<bool> named_;
  event_hash hash_;
  uint64_t count_ = 0;
};

/// What a log file holds.
struct recorded_run {
  uint64_t seed = 0, hash = 0;
  std::vector<std::string> names;  // by actor_number
  std::vector<event> events;
};

/// Reads a log file's bytes; at most 2^31 of them. `corrupt` names the byte: cut short, unknown kinds, counts or hash
/// that do not fit. Never crashes on any input, and never allocates more than a small multiple of it.
result<recorded_run> read_events(std::string_view bytes, const std::string& name);

}  // namespace troupe::sim
