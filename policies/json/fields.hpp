// Plain structs to and from JSON by a list of their fields, so that a decision's parser, its schema and its printer
// cannot disagree. Strict: an unknown or missing key, a wrong type, a number out of the member's range are errors with
// a path.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "policies/registry.hpp"
#include "runtime/base/result.hpp"

namespace troupe::policies {

/// Specialise with `static auto list()` returning std::tuple{required(...), optional(...), ...} for a struct, ...
template <class T>
struct json_fields;

/// ... or with `static constexpr std::array<const char*, N> names` for an enum whose values are 0..N-1.
template <class T>
struct json_names;

/// One member and its key.
template <class C, class M>
struct json_field {
  const char* name;
  M C::*member;
  const char* help;
  bool is_required;
};

/// A key that must be there.
template <class C, class M>
json_field<C, M> required(const char* name, M C::*member, const char* help) {
  return {name, member, help, true};
}

/// A key that may be left out; the member then keeps its default.
template <class C, class M>
json_field<C, M> optional(const char* name, M C::*member, const char* help) {
  return {name, member, help, false};
}

/// Is a std::vector.
template <class T>
struct is_vector : std::false_type {};
/// It is.
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};
/// Is a std::optional.
template <class T>
struct is_optional : std::false_type {};
/// It is.
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};
/// Value to JSON. Not finite numbers become null.
template <class T>
nlohmann::json to_json_value(const T& value) {
  using nlohmann::json;
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_enum_v<T>) {
    return json_names<T>::names.at(static_cast<size_t>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isfinite(value) ? json(value) : json(nullptr);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else if constexpr (is_optional<T>::value) {
    return value ? to_json_value(*value) : json(nullptr);
  } else if constexpr (is_vector<T>::value) {
    json out = json::array();
    for (const auto& v : value) out.push_back(to_json_value(static_cast<const typename T::value_type&>(v)));
    return out;
  } else {
    json out = json::object();
    std::apply([&](const auto&... f) { ((out[f.name] = to_json_value(value.*f.member)), ...); },
               json_fields<T>::list());
    return out;
  }
}

/// JSON to value; `path` names the place in error messages. Leaves `out` half written on an error.
template <class T>
result<void> from_json_value(const nlohmann::json& in, T& out, const std::string& path) {
  const auto wrong = [&](const char* want) {
    return fail(errc::invalid_argument, "{}: expected {}, got {}", path.empty() ? "input" : path, want, in.type_name());
  };
  if constexpr (std::is_same_v<T, bool>) {
    if (!in.is_boolean()) return wrong("true or false");
    out = in.get<bool>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!in.is_string()) return wrong("a string");
    out = in.get<std::string>();
  } else if constexpr (std::is_enum_v<T>) {
    if (!in.is_string()) return wrong("a string");
    const auto& names = json_names<T>::names;
    std::string all;
    for (size_t i = 0; i < names.size(); ++i) {
      if (in.get_ref<const std::string&>() == names[i]) {
        out = static_cast<T>(i);
        return {};
      }
      all += (i ? ", " : "") + std::string(names[i]);
    }
    return fail(errc::invalid_argument, "{}: one of {} expected, got {}", path, all, in.dump());
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!in.is_number()) return wrong("a number");
    out = in.get<T>();
    if (!std::isfinite(out)) return fail(errc::invalid_argument, "{}: not a finite number", path);
  } else if constexpr (std::is_arithmetic_v<T>) {
    if (!in.is_number_integer()) return wrong("a whole number");
    const bool fits =
        in.is_number_unsigned() ? std::in_range<T>(in.get<uint64_t>()) : std::in_range<T>(in.get<int64_t>());
    if (!fits)
      return fail(errc::invalid_argument, "{}: {} is outside {} to {}", path, in.dump(), std::numeric_limits<T>::min(),
                  std::numeric_limits<T>::max());
    out = in.get<T>();
  } else if constexpr (is_optional<T>::value) {
    if (in.is_null()) {
      out.reset();
      return {};
    }
    return from_json_value(in, out.emplace(), path);
  } else if constexpr (is_vector<T>::value) {
    if (!in.is_array()) return wrong("an array");
    out.clear();
    out.reserve(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      typename T::value_type v{};
      if (auto r = from_json_value(in[i], v, fmt::format("{}[{}]", path, i)); !r) return r;
      out.push_back(std::move(v));
    }
  } else {
    if (!in.is_object()) return wrong("an object");
    result<void> status;
    size_t known = 0;
    const auto one = [&](const auto& f) {
      if (!status) return;
      const auto at = in.find(f.name);
      const std::string where = path.empty() ? f.name : path + "." + f.name;
      if (at == in.end()) {
        if (f.is_required) status = fail(errc::invalid_argument, "{}: missing ({})", where, f.help);
        return;
      }
      ++known;
      status = from_json_value(*at, out.*f.member, where);
    };
    std::apply([&](const auto&... f) { (one(f), ...); }, json_fields<T>::list());
    if (!status || known == in.size()) return status;
    for (const auto& item : in.items()) {
      bool found = false;
      std::apply([&](const auto&... f) { ((found = found || item.key() == f.name), ...); }, json_fields<T>::list());
      if (!found)
        return fail(errc::invalid_argument, "{}: unknown key", path.empty() ? item.key() : path + "." + item.key());
    }
  }
  return {};
}

/// JSON Schema of a type. Struct members carry their help and, where optional, their default.
template <class T>
nlohmann::json schema_of() {
  using nlohmann::json;
  if constexpr (std::is_same_v<T, bool>) {
    return {{"type", "boolean"}};
  } else if constexpr (std::is_same_v<T, std::string>) {
    return {{"type", "string"}};
  } else if constexpr (std::is_enum_v<T>) {
    json out{{"type", "string"}, {"enum", json::array()}};
    for (const char* n : json_names<T>::names) out["enum"].push_back(n);
    return out;
  } else if constexpr (std::is_floating_point_v<T>) {
    return {{"type", "number"}};
  } else if constexpr (std::is_arithmetic_v<T>) {
    return {
        {"type", "integer"}, {"minimum", std::numeric_limits<T>::min()}, {"maximum", std::numeric_limits<T>::max()}};
  } else if constexpr (is_optional<T>::value) {
    json out = schema_of<typename T::value_type>();
    out["type"] = json::array({out["type"], "null"});
    return out;
  } else if constexpr (is_vector<T>::value) {
    return {{"type", "array"}, {"items", schema_of<typename T::value_type>()}};
  } else {
    json properties = json::object(), needed = json::array();
    const T defaults{};
    const auto one = [&]<class M>(const json_field<T, M>& f) {
      json p = schema_of<M>();
      p["description"] = f.help;
      if (f.is_required)
        needed.push_back(f.name);
      else
        p["default"] = to_json_value(defaults.*f.member);
      properties[f.name] = std::move(p);
    };
    std::apply([&](const auto&... f) { (one(f), ...); }, json_fields<T>::list());
    return {{"type", "object"}, {"properties", properties}, {"required", needed}, {"additionalProperties", false}};
  }
}

/// The value type of a result; any other type is its own.
template <class T>
struct unwrap {
  using type = T;
};
/// Of a result.
template <class T>
struct unwrap<tl::expected<T, error>> {
  using type = T;
};

/// A registry entry of a pure function `In -> Out` or `In -> result<Out>`; both structs need a field list.
template <class In, class Fn>
policy_entry make_entry(std::string_view name, std::string_view help, Fn fn) {
  using Ret = std::invoke_result_t<Fn, const In&>;
  using Out = typename unwrap<Ret>::type;
  return {name, help, [] { return schema_of<In>(); }, [] { return schema_of<Out>(); },
          [fn](const nlohmann::json& j) -> result<nlohmann::json> {
            In in{};
            if (auto r = from_json_value(j, in, ""); !r) return fail(r.error());
            if constexpr (std::is_same_v<Ret, Out>) {
              return to_json_value(fn(in));
            } else {
              TROUPE_TRY(const Out out, fn(in));
              return to_json_value(out);
            }
          }};
}

}  // namespace troupe::policies
