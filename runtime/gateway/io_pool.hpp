// The io threads of a server. Each has its own io_context, and a connection stays on one, so connections need no locks.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace troupe::gateway {

class connection;

/// One io thread. Everything but `post` belongs to that thread.
struct io_thread {
  boost::asio::io_context context{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{context.get_executor()};
  std::set<connection*> open;  // connections that are not closed
  std::thread thread;

  /// Runs `f` on this thread; dropped after `close`. Any thread. (A generator may call back long after the server
  /// stopped.)
  void post(std::function<void()> f) {
    std::lock_guard lock(mutex_);
    if (!closed_) boost::asio::post(context, std::move(f));
  }
  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

 private:
  std::mutex mutex_;
  bool closed_ = false;  // by mutex_
};

}  // namespace troupe::gateway
