// One macro that lists the fields of a message, so that the way CAF wants to visit them is written down once.
#pragma once

#include <caf/meta/type_name.hpp>

#define TROUPE_PARENS ()
#define TROUPE_EXPAND(...) TROUPE_EXPAND3(TROUPE_EXPAND3(TROUPE_EXPAND3(__VA_ARGS__)))
#define TROUPE_EXPAND3(...) TROUPE_EXPAND2(TROUPE_EXPAND2(TROUPE_EXPAND2(__VA_ARGS__)))
#define TROUPE_EXPAND2(...) TROUPE_EXPAND1(TROUPE_EXPAND1(TROUPE_EXPAND1(__VA_ARGS__)))
#define TROUPE_EXPAND1(...) __VA_ARGS__
#define TROUPE_EACH(macro, ...) __VA_OPT__(TROUPE_EXPAND(TROUPE_EACH_NEXT(macro, __VA_ARGS__)))
#define TROUPE_EACH_NEXT(macro, a, ...) macro(a) __VA_OPT__(TROUPE_EACH_AGAIN TROUPE_PARENS(macro, __VA_ARGS__))
#define TROUPE_EACH_AGAIN() TROUPE_EACH_NEXT
#define TROUPE_FIELD(name) , x.name

/// TROUPE_FIELDS(join_request, cluster, name, host): makes `type` a message by naming all of its fields. Write it in
/// the namespace of the type, right after it. At most 27 fields.
#define TROUPE_FIELDS(type, ...)                                                    \
  template <class Inspector>                                                        \
  typename Inspector::result_type inspect(Inspector& f, type& x) {                  \
    return f(::caf::meta::type_name(#type) TROUPE_EACH(TROUPE_FIELD, __VA_ARGS__)); \
  }

/// The same for a message without fields.
#define TROUPE_NO_FIELDS(type)                                   \
  template <class Inspector>                                     \
  typename Inspector::result_type inspect(Inspector& f, type&) { \
    return f(::caf::meta::type_name(#type));                     \
  }
