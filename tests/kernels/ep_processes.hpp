// Several rank processes of one group, driven by lines.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "kernels/ep/ep.hpp"
#include "tests/support/child_process.hpp"

namespace troupe::kernels::ep {

struct rank_process {
  testing_support::child_process process;
  uint64_t incarnation;
  std::string address;  // hex; empty if it did not start
};

/// What a rank said when a call failed.
struct loss {
  std::string code;
  nanoseconds at{};
  std::string suspects;  // "[1,2]"
  std::string text;
};

class process_group {
 public:
  /// `path`: of ep_rank. `mode`: "shm" or "tcp".
  process_group(std::string path, uint32_t ranks, std::string mode) : path_(std::move(path)), mode_(std::move(mode)) {
    for (uint32_t r = 0; r < ranks; ++r) ranks_.push_back(start(r + 1));
    for (auto& r : ranks_) read_address(r);
  }

  rank_process& operator[](size_t r) { return ranks_[r]; }
  size_t size() const { return ranks_.size(); }

  rank_process start(uint64_t incarnation) {
    return {testing_support::child_process({path_, std::to_string(incarnation), mode_}), incarnation, {}};
  }
  void read_address(rank_process& r) {
    std::istringstream in(r.process.line());
    std::string word;
    in >> word >> r.address;
  }

  struct how {
    uint32_t deadline_ms = 10000, connect_ms = 10000;
    group_shape shape{0, 24, 3, 9};
    uint32_t spins = 12, yield_us = 500;
  };
  /// Starts the connect of `who` to a group of `members` (indices); answers are read by `answer`.
  void say_connect(uint64_t epoch, const std::vector<uint32_t>& members, const how& h, uint32_t position) {
    std::string line =
        fmt::format("connect {} {} {} {} {} {} {} {} {} {}", epoch, position, h.deadline_ms, h.connect_ms,
                    h.shape.hidden, h.shape.top_k, h.shape.max_rows, h.spins, h.yield_us, members.size());
    for (const uint32_t m : members) line += fmt::format(" {} {}", ranks_[m].address, ranks_[m].incarnation);
    ranks_[members[position]].process.say(line);
  }
  /// Connects `members`; true if all said so.
  bool connect(uint64_t epoch, const std::vector<uint32_t>& members, const how& h) {
    for (uint32_t i = 0; i < members.size(); ++i) say_connect(epoch, members, h, i);
    bool all = true;
    for (const uint32_t m : members) {
      const std::string said = ranks_[m].process.line();
      if (said != "connected") {
        fprintf(stderr, "rank %u: %s\n", m, said.c_str());
        all = false;
      }
    }
    return all;
  }
  bool connect(uint64_t epoch, const how& h) {
    std::vector<uint32_t> all;
    for (uint32_t r = 0; r < ranks_.size(); ++r) all.push_back(r);
    return connect(epoch, all, h);
  }
  void say_all(const std::string& line) {
    for (auto& r : ranks_) r.process.say(line);
  }

  static loss parse(const std::string& line) {
    loss l;
    std::istringstream in(line);
    std::string word;
    int64_t at = 0;
    in >> word >> l.code >> at >> l.suspects;
    std::getline(in, l.text);
    if (word != "lost") l.code = "not lost: " + line;
    l.at = nanoseconds(at);
    return l;
  }

 private:
  std::string path_, mode_;
  std::vector<rank_process> ranks_;
};

}  // namespace troupe::kernels::ep
