// A gateway with the echo generator as a program, for clients in other languages. Prints its address, serves until its
// standard input ends.
#include <cstdio>
#include <iostream>

#include "runtime/base/log.hpp"
#include "runtime/gateway/server.hpp"
#include "tests/gateway/scripted_generator.hpp"

int main(int argc, char** argv) {
  using namespace troupe;
  if (argc != 2) return std::fprintf(stderr, "usage: gateway_test_server MODEL_FOLDER\n"), 2;
  log::init("test", "warning");
  auto r = recipe::recipe::load(argv[1]);
  if (!r) return std::fprintf(stderr, "%s\n", r.error().message.c_str()), 1;
  gateway::testing::scripted_generator gen(gateway::testing::echo);
  observe::metrics metrics("tiny-v41");
  auto s = gateway::server::start({}, std::shared_ptr<const recipe::recipe>(std::move(*r)), gen, metrics,
                                  steady_clock(), rng(1));
  if (!s) return std::fprintf(stderr, "%s\n", s.error().message.c_str()), 1;
  std::printf("http://%s/v1\n", (*s)->address().c_str());
  std::fflush(stdout);
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  return 0;
}
