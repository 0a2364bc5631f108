// The key file.
#include "runtime/gateway/keys.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::gateway {
namespace {

using ::testing::HasSubstr;

TEST(keys, yaml_and_json_lines_say_the_same) {
  auto yaml = key_ring::parse(
      "keys:\n  - {key: sk-12345678, tenant: acme, traffic: agent, priority: 7}\n  - key: sk-abcdefgh\n    tenant: "
      "zeta\n",
      "keys.yaml");
  auto lines = key_ring::parse(
      "{\"key\":\"sk-12345678\",\"tenant\":\"acme\",\"traffic\":\"agent\",\"priority\":7}\n\n{\"key\":\"sk-abcdefgh\","
      "\"tenant\":"
      "\"zeta\"}\n",
      "keys.jsonl");
  ASSERT_TRUE(yaml) << yaml.error().message;
  ASSERT_TRUE(lines) << lines.error().message;
  for (const char* key : {"sk-12345678", "sk-abcdefgh"}) {
    ASSERT_NE(yaml->find(key), nullptr);
    ASSERT_NE(lines->find(key), nullptr);
    EXPECT_EQ(*yaml->find(key), *lines->find(key));
  }
  EXPECT_EQ(yaml->find("sk-12345678")->traffic, traffic_class::agent);
  EXPECT_EQ(yaml->find("sk-12345678")->priority, 7);
  EXPECT_EQ(yaml->find("sk-abcdefgh")->priority, usual_priority);
  EXPECT_EQ(yaml->find("sk-1234567"), nullptr);
  EXPECT_EQ(yaml->find(""), nullptr);
}

TEST(keys, a_tenant_has_one_salt) {
  auto r = key_ring::parse("keys:\n  - {key: sk-12345678, tenant: acme}\n  - {key: sk-abcdefgh, tenant: acme}\n", "k");
  ASSERT_TRUE(r);
  EXPECT_EQ(r->find("sk-12345678")->salt, r->find("sk-abcdefgh")->salt);
  EXPECT_EQ(r->find("sk-12345678")->salt.size(), 64u);
  EXPECT_NE(derived_salt("acme"), derived_salt("acme2"));
  // sha256("20:troupe tenant salt 14:acme"), by sha256sum: the same in every process and for ever, or stored caches are
  // lost.
  EXPECT_EQ(derived_salt("acme"), "ba48c9594215a81d361a7cf2624936d29a3a886766fc4c9d6af7b5aaf193ccbb");
}

TEST(keys, errors_name_the_line_and_show_no_key) {
  auto error = [](const char* text) {
    auto r = key_ring::parse(text, "keys.yaml");
    std::string m = r ? "accepted" : r.error().message;
    EXPECT_THAT(m, ::testing::Not(HasSubstr("sk-12345678")));
    return m;
  };
  EXPECT_THAT(error(""), HasSubstr("keys.yaml"));
  EXPECT_THAT(error("keys: []\n"), HasSubstr("no key"));
  EXPECT_THAT(error("keys:\n  - {key: sk-12345678}\n"), HasSubstr("keys.yaml:2: tenant"));
  EXPECT_THAT(error("keys:\n  - {tenant: a}\n"), HasSubstr("keys.yaml:2: key"));
  EXPECT_THAT(error("keys:\n  - {key: short, tenant: a}\n"), HasSubstr("8 characters"));
  EXPECT_THAT(error("keys:\n  - {key: sk-12345678, tenant: a, traffic: fast}\n"), HasSubstr("keys.yaml:2: traffic"));
  for (const char* wrong : {"10", "-1", "high"})
    EXPECT_THAT(error(("keys:\n  - {key: sk-12345678, tenant: a, priority: " + std::string(wrong) + "}\n").c_str()),
                HasSubstr("priority must be 0 to 9"));
  EXPECT_THAT(error("keys:\n  - {key: sk-12345678, tenant: a, colour: red}\n"), HasSubstr("unknown field colour"));
  EXPECT_THAT(error("keys:\n  - {key: sk-12345678, tenant: a}\n  - {key: sk-12345678, tenant: b}\n"),
              HasSubstr("keys.yaml:3"));
  EXPECT_THAT(error("keys:\n  - {key: sk-12345678, tenant: a}\n  - {key: sk-abcdefgh, tenant: a, salt: x}\n"),
              HasSubstr("another salt"));
  EXPECT_THAT(error("keys:\n  - [\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(error("keys:\n  - {key: [a], tenant: a}\n"), HasSubstr("must be a string"));
  EXPECT_THAT(error("{\"key\":\"sk-12345678\",\"tenant\":\"a\"}\n{oops\n"), HasSubstr("keys.yaml:2"));
  EXPECT_THAT(error("{\"key\":7,\"tenant\":\"a\"}\n"), HasSubstr("keys.yaml:1: key must be a string"));
}

}  // namespace
}  // namespace troupe::gateway
