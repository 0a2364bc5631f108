// troupe version: what was built, and with what.
#include <fmt/format.h>
#include <ucp/api/ucp.h>
#include <caf/config.hpp>

#include <memory>
#include <nlohmann/json.hpp>

#include "runtime/cli/command.hpp"

namespace troupe::cli {
namespace {

nlohmann::ordered_json facts() {
  nlohmann::ordered_json j;
  j["version"] = TROUPE_VERSION;
  j["compiler"] = TROUPE_COMPILER;
  j["build"] = TROUPE_BUILD_TYPE;
  j["asserts"] = true;
  j["caf"] = fmt::format("{}.{}.{}", CAF_VERSION / 10000, CAF_VERSION / 100 % 100, CAF_VERSION % 100);
  j["ucx"] = ucp_get_version_string();
  j["engines"] = {"cpu"};
  j["cpu_kernels"] = {"portable", "avx2", "avx512"};
  j["transports"] = {"loopback", "ucx"};
  j["cuda_toolkit_found"] = TROUPE_HAVE_CUDA != 0;
  j["nccl_found"] = TROUPE_HAVE_NCCL != 0;
  return j;
}

}  // namespace

void add_version(CLI::App& app, context& ctx) {
  app.set_version_flag("--version", std::string("troupe ") + TROUPE_VERSION, "Print the version and exit");
  auto json = std::make_shared<bool>(false);
  CLI::App* c = app.add_subcommand("version", "Version, build facts and backends");
  c->add_flag("--json", *json, "As JSON");
  c->callback([json, &ctx] {
    auto j = facts();
    if (*json) {
      fmt::print("{}\n", j.dump(2));
    } else {
      for (const auto& [k, v] : j.items()) {
        std::string text;
        if (v.is_array())
          for (const auto& e : v) text += (text.empty() ? "" : ", ") + e.get<std::string>();
        else
          text = v.is_string() ? v.get<std::string>() : v.dump();
        fmt::print("{:<18} {}\n", k, text);
      }
    }
    ctx.result = ok;
  });
}

}  // namespace troupe::cli
