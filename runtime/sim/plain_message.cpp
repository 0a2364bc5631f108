#include "runtime/sim/plain_message.hpp"

#include <caf/meta/annotation.hpp>
#include <caf/meta/type_name.hpp>

#include <string>
#include <type_traits>
#include <typeindex>
#include <unordered_map>

#include "actors/protocol/messages.hpp"
#include "actors/protocol/storage.hpp"

namespace troupe::sim {
namespace {

// Walks the types of a message's fields, whatever is in them: `plain` only if every one is known to hold no handle.
struct plain_search {
  using result_type = void;
  bool plain = true;

  template <class... Ts>
  void operator()(Ts&&... xs) {
    (void)std::initializer_list<int>{(look<std::decay_t<Ts>>(), (void)xs, 0)...};
  }
  template <class T>
  void look() {
    if constexpr (std::is_same_v<T, caf::meta::type_name_t>) {
      return;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string>) {
      return;
    } else if constexpr (requires { typename T::mapped_type; }) {
      look<typename T::key_type>();
      look<typename T::mapped_type>();
    } else if constexpr (requires(T & x) {
                           typename T::value_type;
                           x.begin();
                           x.end();
                         }) {
      look<typename T::value_type>();
    } else if constexpr (std::is_base_of_v<caf::meta::annotation, T>) {
      plain = false;
    } else if constexpr (std::is_convertible_v<T, caf::strong_actor_ptr> || !std::is_default_constructible_v<T>) {
      plain = false;
    } else {
      inspect_one<T>();
    }
  }

 private:
  template <class T>
  void inspect_one() {
    if constexpr (requires(plain_search & f, T & x) { inspect(f, x); }) {
      T x{};
      inspect(*this, x);
    } else {
      plain = false;
    }
  }
};

// Adds up sizes; elements of fixed size are not visited one by one.
struct size_sum {
  using result_type = void;
  uint64_t bytes = 0;

  template <class... Ts>
  void operator()(Ts&&... xs) {
    (void)std::initializer_list<int>{(add(xs), 0)...};
  }
  template <class T>
  void add(const T& x) {
    if constexpr (std::is_same_v<T, caf::meta::type_name_t>) {
      return;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      bytes += sizeof(T);
    } else if constexpr (requires { typename T::mapped_type; }) {
      bytes += 4;
      for (const auto& [key, value] : x) {
        add(key);
        add(value);
      }
    } else if constexpr (requires {
                           typename T::value_type;
                           x.begin();
                           x.size();
                         }) {
      bytes += 4;
      if constexpr (std::is_arithmetic_v<typename T::value_type> || std::is_enum_v<typename T::value_type>)
        bytes += x.size() * sizeof(typename T::value_type);
      else
        for (const auto& e : x) add(e);
    } else if constexpr (requires(size_sum & f, T & y) { inspect(f, y); }) {
      inspect(*this, const_cast<T&>(x));  // the visitor only reads
    }
  }
};

using size_function = uint64_t (*)(const caf::message&);

template <class T>
void enter(std::unordered_map<std::type_index, size_function>& table) {
  plain_search s;
  s.look<T>();
  if (!s.plain) return;
  table[std::type_index(typeid(T))] = [](const caf::message& m) {
    size_sum sum;
    sum.add(m.get_as<T>(0));
    return sum.bytes + 16;  // the header
  };
}

const std::unordered_map<std::type_index, size_function>& plain_types() {
  static const auto table = [] {
    std::unordered_map<std::type_index, size_function> t;
#define TROUPE_ENTER(type) enter<actors::type>(t);
    TROUPE_MESSAGES(TROUPE_ENTER)
#undef TROUPE_ENTER
    return t;
  }();
  return table;
}

}  // namespace

std::optional<uint64_t> plain_size(const caf::message& m) {
  if (m.size() != 1) return std::nullopt;
  const auto type = m.type(0);
  if (!type.second) return std::nullopt;
  const auto it = plain_types().find(std::type_index(*type.second));
  if (it == plain_types().end()) return std::nullopt;
  return it->second(m);
}

}  // namespace troupe::sim
