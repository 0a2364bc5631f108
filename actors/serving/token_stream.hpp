// Puts the tokens of one request in order of position, each once, whatever order or how often they arrive.
#pragma once

#include <map>
#include <vector>

#include "actors/protocol/serving.hpp"

namespace troupe::actors {

/// Puts the items of one request into the order of positions and drops what came twice. Plain state.
class token_stream {
 public:
  /// Items held back because something before them is missing; at the bound `push` says overflow.
  static constexpr size_t max_early = 256;

  explicit token_stream(uint32_t first_position = 0) : next_(first_position) {}

  struct outcome {
    std::vector<stream_item> ready;  // in order, without gaps and without tokens that were there already
    bool overflow = false;           // too many items held back: give the attempt up
  };
  /// Takes an item of the current attempt. The item that ends the attempt comes out last.
  outcome push(stream_item item);

  /// A new attempt begins: what was held back is dropped.
  void restart() { early_.clear(); }

  /// Position of the next token; everything before it has come out.
  uint32_t next() const { return next_; }

 private:
  void cut(stream_item& item) const;

  uint32_t next_;
  std::multimap<uint32_t, stream_item> early_;  // by first position
};

}  // namespace troupe::actors
