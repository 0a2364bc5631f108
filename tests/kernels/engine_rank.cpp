// One engine of an expert-parallel group as a process of its own, for the identity test: takes commands by lines.
//   argv: incarnation, "shm" | "tcp", threads, instruction set ("" = the widest)
//   group EPOCH RANK SEED COPIES RANKS (ADDRESS INCARNATION)...   -> "grouped"
//   run COUNT     runs the prompts i < COUNT of the workload with i % ranks == rank -> one line per prompt, then "done"
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <sstream>

#include "kernels/ep/transport_group.hpp"
#include "runtime/base/log.hpp"
#include "tests/kernels/engine_fixture.hpp"
#include "tests/kernels/identity_workload.hpp"
#include "tests/support/hex.hpp"

namespace {

using namespace troupe;
using namespace troupe::kernels;
using namespace troupe::kernels::testing_support;

struct rank_state {
  std::unique_ptr<ep::ep_endpoint> endpoint;
  std::shared_ptr<const model> weights;
  engine_limits limits;
  std::string isa;
  uint32_t rank = 0, ranks = 1;
  std::unique_ptr<engine_driver> driver;
};

std::string join(rank_state& s, std::istream& in) {
  ep::group_view view;
  uint64_t epoch, seed;
  uint32_t copies;
  in >> epoch >> s.rank >> seed >> copies >> s.ranks;
  view.epoch = group_epoch{epoch};
  view.rank = s.rank;
  for (uint32_t i = 0; i < s.ranks; ++i) {
    std::string address;
    uint64_t incarnation;
    in >> address >> incarnation;
    view.members.push_back({incarnation, troupe::testing_support::from_hex(address)});
  }
  view.shape = engine_group_shape(*s.weights, s.limits, s.ranks);
  view.deadline = std::chrono::seconds(60);
  view.connect_timeout = std::chrono::seconds(60);
  auto group = s.endpoint->connect(view);
  if (!group) return "failed " + group.error().message;
  cpu_engine_config c;
  c.weights = s.weights;
  c.limits = s.limits;
  c.isa = s.isa;
  c.group = std::move(*group);
  c.placement = permuted_placement(*s.weights, s.ranks, copies, seed);
  s.driver = std::make_unique<engine_driver>(std::move(c));
  return "grouped";
}

void run(rank_state& s, std::istream& in) {
  size_t count;
  in >> count;
  const auto all = mixed_prompts(count);
  std::vector<prompt> mine;
  std::vector<size_t> index;
  for (size_t i = s.rank; i < all.size(); i += s.ranks) {
    mine.push_back(all[i]);
    index.push_back(i);
  }
  const auto done = s.driver->complete(mine);
  for (size_t i = 0; i < done.size(); ++i) std::cout << index[i] << ' ' << text_of(done[i]) << '\n';
  std::cout << "done" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(300);
  if (argc != 5) return 2;
  log::init("engine_rank", "warning");
  rank_state s;
  ep::ep_endpoint_options options;
  options.incarnation = std::strtoull(argv[1], nullptr, 10);
  options.shared_memory = std::strcmp(argv[2], "tcp") != 0;
  s.isa = argv[4];
  s.limits = identity_limits(16, 96);
  s.limits.micro_batch_rows = 40;  // some of the steps run in two micro-batches
  s.limits.threads = static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10));
  auto weights = load_model(TROUPE_TEST_DATA "/tiny-v41");
  auto endpoint = ep::make_ep_endpoint(options);
  if (!weights || !endpoint) {
    std::cout << "error " << (weights ? endpoint.error().message : weights.error().message) << std::endl;
    return 1;
  }
  s.weights = *weights;
  s.endpoint = std::move(*endpoint);
  std::cout << "address " << troupe::testing_support::to_hex(s.endpoint->address()) << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string command;
    in >> command;
    if (command == "group")
      std::cout << join(s, in) << std::endl;
    else if (command == "run")
      run(s, in);
    else
      std::cout << "unknown command " << command << std::endl;
  }
  return 0;
}
