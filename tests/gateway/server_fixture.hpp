// A server on a free loopback port with a scripted generator behind it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/gateway/server.hpp"
#include "tests/gateway/http_client.hpp"
#include "tests/gateway/scripted_generator.hpp"

namespace troupe::gateway::testing {

class server_fixture : public ::testing::Test {
 protected:
  static constexpr uint64_t seed = 5;

  /// Starts the server; call it once, with what the test changes in `opts`.
  void serve(scripted_generator::playwright play = echo, uint32_t max_context = 512) {
    gen = std::make_unique<scripted_generator>(std::move(play), max_context);
    auto r = recipe::recipe::load(TROUPE_TEST_DATA "/tiny-v41");
    ASSERT_TRUE(r) << r.error().message;
    auto s = server::start(opts, std::shared_ptr<const recipe::recipe>(std::move(*r)), *gen, metrics, steady_clock(),
                           rng(seed));
    ASSERT_TRUE(s) << s.error().message;
    srv = std::move(*s);
  }

  uint16_t port() const { return srv->port(); }
  nlohmann::json chat(std::string_view text) const {
    return {{"model", "tiny-v41"}, {"messages", {{{"role", "user"}, {"content", text}}}}};
  }
  nlohmann::json completion(std::string_view text) const {
    return {{"model", "tiny-v41"}, {"prompt", text}, {"max_tokens", 100}};
  }

  /// Value of a series in the exposition, by the text before its value; -1 when there is none.
  double metric(const std::string& series) const {
    std::string all = metrics.exposition();
    size_t at = all.find("\n" + series + " ");
    return at == std::string::npos ? -1 : std::stod(all.substr(at + series.size() + 2));
  }

  options opts;
  observe::metrics metrics{"tiny-v41"};
  std::unique_ptr<scripted_generator> gen;
  std::unique_ptr<server> srv;
};

}  // namespace troupe::gateway::testing
