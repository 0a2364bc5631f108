// Coroutines for long background work: steps in a row instead of callbacks in callbacks. They run on one executor.
#pragma once

#include <coroutine>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "kv/store/executor.hpp"
#include "kv/store/gate.hpp"
#include "kv/store/target.hpp"

namespace troupe::kv {

/// A coroutine that nobody waits for: it runs until its first wait at once, and its frame ends with it. What it uses
/// must outlive it, so its parameters are values or shared pointers.
struct flow {
  struct promise_type {
    flow get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { throw; }  // only a test's crash hook throws; it reaches whoever runs the executor
  };
};

/// Waits for the answer of a call: `auto r = co_await answer_of<T>([&](reply<T> back) { target.list(..., back); });`
template <class T>
class answer_of {
 public:
  explicit answer_of(std::function<void(reply<T>)> call) : call_(std::move(call)) {}
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> h) {
    auto call = std::move(call_);  // the frame may be gone when the call returns
    call([this, h](result<T> r) {
      got_.emplace(std::move(r));
      h.resume();
    });
  }
  result<T> await_resume() { return std::move(*got_); }

 private:
  std::function<void(reply<T>)> call_;
  std::optional<result<T>> got_;
};

/// Waits for a call without an answer that comes back later, never inside the call.
class signal_of {
 public:
  explicit signal_of(std::function<void(std::function<void()>)> call) : call_(std::move(call)) {}
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> h) {
    auto call = std::move(call_);
    call([h] { h.resume(); });
  }
  void await_resume() {}

 private:
  std::function<void(std::function<void()>)> call_;
};

/// Waits until a gate lets `bytes` in; the caller leaves it.
class entry_of {
 public:
  entry_of(byte_gate& gate, executor& home, uint64_t bytes) : gate_(gate), home_(home), bytes_(bytes) {}
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> h) {
    gate_.enter(bytes_, [this_home = &home_, h] { this_home->post([h] { h.resume(); }); });
  }
  void await_resume() {}

 private:
  byte_gate& gate_;
  executor& home_;
  const uint64_t bytes_;
};

/// Counts things that were started and waits until all have ended.
class wait_group {
 public:
  explicit wait_group(executor& home) : home_(home) {}
  void add() { ++open_; }
  void done() {
    if (--open_ == 0 && waiting_) {
      auto h = std::exchange(waiting_, {});
      home_.post([h] { h.resume(); });
    }
  }
  bool await_ready() const noexcept { return open_ == 0; }
  void await_suspend(std::coroutine_handle<> h) { waiting_ = h; }
  void await_resume() {}

 private:
  executor& home_;
  size_t open_ = 0;
  std::coroutine_handle<> waiting_;
};

}  // namespace troupe::kv
