// Errors as values. Every operation that can fail for a reason outside the program returns result<T>.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace troupe {

/// Kind of failure. Values are sent between processes: append only, never renumber.
enum class errc : uint8_t {
  invalid_argument = 1,  // the caller's input is wrong; trying again cannot help
  not_found = 2,
  unavailable = 3,  // not now; trying again later may help
  peer_lost = 4,    // the connection to a peer ended while the operation was under way
  timeout = 5,
  cancelled = 6,
  exhausted = 7,  // a stated limit was reached (queue, pages, connections)
  corrupt = 8,    // stored or received bytes do not hold what they should
  io = 9,         // the operating system refused
  unsupported = 10,
  stale = 11,  // an epoch, incarnation or generation of the past
  internal = 12,
};

/// Short lower-case name of `code`, e.g. "peer_lost".
const char* to_string(errc code);

/// What went wrong, where, and what to do about it, in one sentence for people.
struct error {
  errc code = errc::internal;
  std::string message;
  bool operator==(const error&) const = default;
};

template <class T>
using result = tl::expected<T, error>;

/// Builds the error side of a result: `return fail(errc::io, "{}: {}", path, reason);`
template <class... Args>
tl::unexpected<error> fail(errc code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<error>(error{code, fmt::format(format, std::forward<Args>(args)...)});
}

/// Passes an error on unchanged: `if (!r) return fail(r.error());`
inline tl::unexpected<error> fail(error e) { return tl::unexpected<error>(std::move(e)); }

}  // namespace troupe

/// Evaluates `expr` (a result); returns its error from the enclosing function, else moves the value into `decl`.
#define TROUPE_TRY(decl, expr) TROUPE_TRY_IMPL(decl, expr, TROUPE_TRY_CAT(troupe_try_, __LINE__))
#define TROUPE_TRY_IMPL(decl, expr, tmp)                   \
  auto tmp = (expr);                                       \
  if (!tmp) return ::troupe::fail(std::move(tmp.error())); \
  decl = std::move(*tmp)
#define TROUPE_TRY_CAT(a, b) TROUPE_TRY_CAT2(a, b)
#define TROUPE_TRY_CAT2(a, b) a##b
