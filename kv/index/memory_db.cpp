#include "kv/index/memory_db.hpp"

#include <mutex>

#include "runtime/base/check.hpp"

namespace troupe::kv {

// Holds no lock between calls: it looks up the next greater key each time, so writers are never held back.
class memory_db::walk final : public cursor {
 public:
  walk(const memory_db& owner, family f, std::string_view from) : owner_(owner), family_(f) {
    std::shared_lock lock(owner_.mutex_);
    take(data().lower_bound(from));
  }
  bool valid() const override { return valid_; }
  std::string_view key() const override { return key_; }
  std::string_view value() const override { return value_; }
  void next() override {
    TROUPE_CHECK(valid_, "next() past the end of family {}", to_string(family_));
    std::shared_lock lock(owner_.mutex_);
    take(data().upper_bound(key_));
  }
  result<void> status() const override { return {}; }

 private:
  const map& data() const { return owner_.data_[static_cast<size_t>(family_)]; }
  void take(map::const_iterator at) {
    valid_ = at != data().end();
    if (valid_) key_ = at->first, value_ = at->second;
  }

  const memory_db& owner_;
  const family family_;
  bool valid_ = false;
  std::string key_, value_;
};

memory_db::memory_db(memory_db_options options) : options_(std::move(options)) {
  TROUPE_CHECK(!options_.sweep || options_.clock, "a sweep needs a clock");
}

memory_db::~memory_db() = default;

result<bool> memory_db::get(family f, std::string_view key, std::string& value) const {
  std::shared_lock lock(mutex_);
  const auto& m = data_[static_cast<size_t>(f)];
  const auto at = m.find(key);
  if (at == m.end()) return false;
  value = at->second;
  return true;
}

result<void> memory_db::multi_get(family f, std::span<const std::string_view> keys,
                                  std::vector<std::optional<std::string>>& values) const {
  values.assign(keys.size(), std::nullopt);
  std::shared_lock lock(mutex_);
  const auto& m = data_[static_cast<size_t>(f)];
  for (size_t i = 0; i < keys.size(); ++i)
    if (const auto at = m.find(keys[i]); at != m.end()) values[i] = at->second;
  return {};
}

result<void> memory_db::write(const write_batch& batch, sync_write sync) {
  std::unique_lock lock(mutex_);
  if (failure_) return fail(*failure_);
  std::vector<undo_op> undo;
  undo.reserve(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto op = batch.at(i);
    auto& m = data_[static_cast<size_t>(op.in)];
    auto at = m.find(op.key);
    undo.push_back({op.in, std::string(op.key), at == m.end() ? std::nullopt : std::optional(at->second)});
    if (op.erase) {
      if (at != m.end()) m.erase(at);
    } else if (at != m.end()) {
      at->second = op.value;
    } else {
      m.emplace(op.key, op.value);
    }
  }
  unsynced_.push_back(std::move(undo));
  if (sync == sync_write::yes) unsynced_.clear();
  while (unsynced_.size() > options_.unsynced_max) unsynced_.pop_front();
  return {};
}

result<void> memory_db::sync() {
  std::unique_lock lock(mutex_);
  if (failure_) return fail(*failure_);
  unsynced_.clear();
  return {};
}

result<std::unique_ptr<cursor>> memory_db::scan(family f, std::string_view from) const {
  return std::unique_ptr<cursor>(std::make_unique<walk>(*this, f, from));
}

result<void> memory_db::clear(family f) {
  std::unique_lock lock(mutex_);
  if (failure_) return fail(*failure_);
  unsynced_.clear();  // safe from power loss on return, and with it everything before
  data_[static_cast<size_t>(f)].clear();
  return {};
}

result<void> memory_db::compact(family f) {
  if (!options_.sweep) return {};
  const int64_t now = options_.clock->now();
  for (walk at(*this, f, ""); at.valid(); at.next()) {
    if (!options_.sweep->drop(f, at.key(), at.value(), now, *this)) continue;
    std::unique_lock lock(mutex_);
    auto& m = data_[static_cast<size_t>(f)];
    const auto it = m.find(at.key());
    if (it == m.end() || it->second != at.value()) continue;  // written meanwhile: the sweep saw an older one
    m.erase(it);
    ++swept_;
  }
  return {};
}

db_stats memory_db::stats() const {
  std::shared_lock lock(mutex_);
  db_stats s;
  s.swept = swept_;
  for (const auto& m : data_)
    for (const auto& [k, v] : m) s.memtable_bytes += k.size() + v.size();
  return s;
}

size_t memory_db::unsynced() const {
  std::shared_lock lock(mutex_);
  return unsynced_.size();
}

void memory_db::power_loss(size_t keep) {
  std::unique_lock lock(mutex_);
  while (unsynced_.size() > keep) {
    auto& undo = unsynced_.back();
    for (auto op = undo.rbegin(); op != undo.rend(); ++op) {
      auto& m = data_[static_cast<size_t>(op->in)];
      if (op->before) {
        m.insert_or_assign(op->key, *op->before);
      } else {
        m.erase(op->key);
      }
    }
    unsynced_.pop_back();
  }
  unsynced_.clear();  // what survived is on disk
}

void memory_db::fail_writes(std::optional<error> e) {
  std::unique_lock lock(mutex_);
  failure_ = std::move(e);
}

bool memory_db::flip(family f, std::string_view key, size_t byte, uint8_t mask) {
  std::unique_lock lock(mutex_);
  auto& m = data_[static_cast<size_t>(f)];
  const auto at = m.find(key);
  if (at == m.end() || byte >= at->second.size()) return false;
  at->second[byte] = static_cast<char>(static_cast<uint8_t>(at->second[byte]) ^ mask);
  return true;
}

std::vector<std::string> memory_db::keys(family f) const {
  std::shared_lock lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [k, v] : data_[static_cast<size_t>(f)]) out.push_back(k);
  return out;
}

}  // namespace troupe::kv
