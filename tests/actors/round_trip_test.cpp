// Every message type survives encoding and decoding with every field set, and equals what was sent. The list is the one
// that the type-id block is made of, so a type cannot be forgotten.
#include <gtest/gtest.h>

#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <caf/message.hpp>

#include "actors/protocol/messages.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::actors {
namespace {

constexpr uint64_t seed = 7;

/// Fills every field of a message with something other than its default, by visiting it as CAF does.
class filler {
 public:
  using result_type = caf::error;
  static constexpr bool reads_state = false;
  static constexpr bool writes_state = true;

  explicit filler(uint64_t s) : random_(s) {}

  template <class... Ts>
  caf::error operator()(Ts&&... xs) {
    (fill(xs), ...);
    return caf::none;
  }
  uint32_t fields = 0;

 private:
  template <class T>
  void fill(T& x) {
    using type = std::decay_t<T>;
    if constexpr (std::is_same_v<type, caf::meta::type_name_t>) {
    } else {
      ++fields;
      if constexpr (std::is_same_v<type, bool>)
        x = true;
      else if constexpr (std::is_enum_v<type>)
        x = static_cast<type>(1 + random_.below(3));
      else if constexpr (std::is_arithmetic_v<type>)
        x = static_cast<type>(1 + random_.below(100));
      else if constexpr (std::is_same_v<type, std::string>)
        x = "text " + std::to_string(random_.next());
      else if constexpr (std::is_same_v<type, any_handle>)
        x = nullptr;  // handles need a network: tested with the driver
      else
        inspect(*this, x);
    }
  }
  template <class T>
  void fill(std::vector<T>& x) {
    ++fields;
    x.resize(1 + random_.below(3));
    for (auto& e : x) fill(e);
  }

  rng random_;
};

struct fixture : ::testing::Test {
  struct config : caf::actor_system_config {
    config() {
      register_messages(*this);
      use_house_scheduler(*this, 1);
    }
  };
  config cfg;
  caf::actor_system system{cfg};

  template <class T>
  void round_trip(const char* name) {
    SCOPED_TRACE(name);
    T original{};
    filler fill(seed);
    inspect(fill, original);
    if (fill.fields) {
      EXPECT_FALSE(original == T{}) << "the filler changed nothing";
    }
    std::vector<char> bytes;
    caf::binary_serializer out{system, bytes};
    auto sent = caf::make_message(original);
    ASSERT_FALSE(out(sent));
    caf::message got;
    caf::binary_deserializer in{system, bytes};
    ASSERT_FALSE(in(got));
    ASSERT_TRUE(got.match_elements<T>());
    EXPECT_TRUE(got.get_as<T>(0) == original);
  }
};

TEST_F(fixture, every_message_round_trips) {
#define TROUPE_ROUND_TRIP(type) round_trip<type>(#type);
  TROUPE_MESSAGES(TROUPE_ROUND_TRIP)
}

TEST_F(fixture, truncated_bytes_are_an_error) {
  std::vector<char> bytes;
  caf::binary_serializer out{system, bytes};
  token_batch batch;
  filler fill(seed);
  inspect(fill, batch);
  ASSERT_FALSE(out(batch));
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    std::vector<char> part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(cut));
    token_batch got;
    caf::binary_deserializer in{system, part};
    EXPECT_TRUE(in(got)) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace troupe::actors
