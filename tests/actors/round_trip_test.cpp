// Every message type survives encoding and decoding with every field set, and equals what was sent. The list is the one
// that the type-id block is made of, so a type cannot be forgotten.
#include <gtest/gtest.h>

#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <caf/uniform_type_info_map.hpp>
#include <typeinfo>

#include "actors/protocol/messages.hpp"
#include "actors/protocol/storage.hpp"
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
  template <class T, size_t N>
  void fill(std::array<T, N>& x) {
    ++fields;
    for (auto& e : x) fill(e);
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
    // By way of what is registered for the type: its codec need not be compiled once more here.
    const auto& types = system.types();
    const auto sent = types.make_value(typeid(T));
    ASSERT_TRUE(sent);
    T& original = *static_cast<T*>(sent->get_mutable());
    filler fill(seed);
    inspect(fill, original);
    if (fill.fields) {
      EXPECT_FALSE(original == T{}) << "the filler changed nothing";
    }
    std::vector<char> bytes;
    caf::binary_serializer out{system, bytes};
    ASSERT_FALSE(sent->save(out));
    const auto got = types.make_value(types.portable_name(sent->type()));  // as the receiver does
    ASSERT_TRUE(got);
    caf::binary_deserializer in{system, bytes};
    ASSERT_FALSE(got->load(in));
    EXPECT_TRUE(*static_cast<const T*>(got->get()) == original);
  }
};

TEST_F(fixture, every_message_round_trips) {
#define TROUPE_ROUND_TRIP(type) round_trip<type>(#type);
  TROUPE_MESSAGES(TROUPE_ROUND_TRIP)
}

TEST(packed_hashes, hashes_come_back_and_odd_lengths_do_not) {
  std::vector<kv::block_hash> hashes(3);
  for (uint32_t i = 0; i < 3; ++i) {
    for (auto& b : hashes[i].bytes) b = static_cast<uint8_t>(37 * i + 11);
    hashes[i].tokens = 0x89abcdef + i;
  }
  auto packed = pack(hashes);
  EXPECT_EQ(packed.bytes.size(), 60u);
  EXPECT_EQ(unpack(packed).value(), hashes);
  packed.bytes.pop_back();
  EXPECT_EQ(unpack(packed).error().code, errc::corrupt);
}

TEST(kv_fence, older_epochs_and_older_lives_are_stale) {
  cluster_view v;
  v.epoch = cluster_epoch{5};
  v.version = 3;
  v.nodes.resize(1);
  v.nodes[0].node = node_number{7};
  v.nodes[0].inc = incarnation{20};
  v.groups.push_back({storage_group, role::storage, group_epoch{4}, 3, {}});
  kv_fence fence;
  fence.follow(v);
  const auto now = storage_epoch_of(v);
  EXPECT_EQ(now, storage_epoch{(5ull << 20) + 4});
  EXPECT_TRUE(fence.check({now, node_number{7}, incarnation{20}}).ok());
  EXPECT_TRUE(fence.check({storage_epoch{now.value + 1}, {}, {}}).ok()) << "a client that knows more";
  EXPECT_EQ(fence.check({storage_epoch{now.value - 1}, {}, {}}).code, errc::stale);
  EXPECT_EQ(fence.check({now, node_number{7}, incarnation{19}}).code, errc::stale);
  // The director starts anew: its group epochs begin at 1, the storage epoch goes on.
  v.epoch = cluster_epoch{6};
  v.groups[0].epoch = group_epoch{1};
  EXPECT_GT(storage_epoch_of(v), now);
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
