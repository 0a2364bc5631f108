// Summaries, their comparison and the page, from a short made-up run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/sim/report/compare.hpp"
#include "runtime/sim/report/html.hpp"
#include "runtime/sim/report/plot.hpp"
#include "runtime/sim/report/summary.hpp"

namespace troupe::sim {
namespace {

using namespace happened;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using json = nlohmann::ordered_json;

// 100 requests, one a second, 11 tokens each: the first after 200 ms, then every 10 ms (every tenth request: 100 ms).
// One of four decode ranks works half of the time, all in one group; a storage node is lost from 20 s to 40 s.
run_summary made_run(uint64_t seed = 1) {
  event_log log;
  summary_options o;
  o.seed = seed, o.name = "made <run>", o.workload = "made up & short", o.command = "troupe sim";
  o.slo_per_token = milliseconds(50);
  summary_builder b(o);
  log.add(b);
  const auto front = log.actor("front/0"), rank = log.actor("decode/0");
  for (int64_t k = 0; k < 100; ++k) {
    const nanoseconds t = seconds(k), each = milliseconds(k % 10 == 9 ? 60 : 10);
    const auto r = static_cast<uint64_t>(k);
    log.record(request_submitted(t, front, r, 1'000, 11, 1, 0));
    log.record(prefix_matched(t, front, r, 7, 3, 1'000, 256));
    log.record(request_placed(t, front, r, 0, pool_kind::decode, rank, r));
    log.record(pool_load(t, pool_kind::decode, 4, r, 1));
    if (k == 40) log.record(fault_ended(t, rank, 0)), log.record(fault_recovered(t, 0, milliseconds(1'500)));
    log.record(request_tokens(t + milliseconds(200), front, r, 0, 0, 1));
    for (int64_t i = 1; i <= 10; ++i) {
      if (k == 20 && i == 3)
        log.record(fault_began(t + milliseconds(225), rank, 0, static_cast<uint64_t>(fault_kind::kill), 5, 2));
      log.record(request_tokens(t + milliseconds(200) + i * each, front, r, 0, static_cast<uint64_t>(i), 1));
    }
    log.record(request_ended(t + milliseconds(810), front, r, request_end::finished, 11));
    log.record(step(t + milliseconds(900), rank, 0, pool_kind::decode, milliseconds(500), milliseconds(500), 4, 11));
    log.record(bytes_moved(t + milliseconds(900), rank, byte_kind::handoff, 1'000));
  }
  log.record(run_ended(seconds(100), true));
  fault_outcome f;
  f.name = "lost", f.kind = fault_kind::kill, f.target = {node_role::storage, 2};
  b.faults({f}, {"fault lost (kill of storage/2) had no effect"});
  return b.finish(log.hash(), log.count());
}

TEST(sim_summary, counts_what_happened) {
  const auto j = to_json(made_run());
  EXPECT_EQ(j["requests"]["submitted"], 100);
  EXPECT_EQ(j["requests"]["finished"], 100);
  EXPECT_EQ(j["requests"]["open"], 0);
  EXPECT_EQ(j["tokens"]["output"], 1'100);
  EXPECT_EQ(j["virtual_s"], 100.0);
  EXPECT_EQ(j["ttft_ms"]["p50"], 200.0);
  EXPECT_EQ(j["ttft_ms"]["p99"], 200.0);
  EXPECT_EQ(j["tpot_ms"]["p50"], 10.0);
  EXPECT_EQ(j["tpot_ms"]["p99"], 60.0);
  EXPECT_EQ(j["tpot_ms"]["mean"], 15.0);
  EXPECT_EQ(j["goodput"]["requests"], 90);  // those with 60 ms per token are not in it
  EXPECT_EQ(j["goodput"]["requests_per_s"], 0.9);
  EXPECT_NEAR(j["hit_rate"]["blocks"].get<double>(), 3.0 / 7, 1e-6);
  EXPECT_EQ(j["hit_rate"]["tokens"], 0.256);
  EXPECT_EQ(j["pools"]["decode"]["ranks"], 4);
  EXPECT_NEAR(j["pools"]["decode"]["in_steps"].get<double>(), 0.5, 1e-6);
  EXPECT_NEAR(j["pools"]["decode"]["achieved_over_balanced"].get<double>(), 0.125, 0.002);
  EXPECT_EQ(j["bytes"]["handoff"], 100'000);
  EXPECT_EQ(j["faults"]["list"][0]["name"], "lost");
  EXPECT_EQ(j["faults"]["list"][0]["began_s"], 20.225);
  EXPECT_EQ(j["faults"]["list"][0]["recovered_after_ms"], 1'500.0);
  EXPECT_EQ(j["faults"]["recovery_ms"]["kill"]["count"], 1);
  EXPECT_EQ(j["faults"]["list"][0]["streams"], 1);
  EXPECT_EQ(j["faults"]["list"][0]["silence_ms"], 5.0);
  EXPECT_EQ(j["faults"]["without_effect"].size(), 1u);
  EXPECT_TRUE(j["violation"].is_null());
  // 4 ranks for 100 s at 2 $ an hour; 0.1 M input tokens of which 25.6 % hit, 1,100 output tokens.
  EXPECT_NEAR(j["economics"]["cost"].get<double>(), 4 * 100.0 / 3600 * 2, 1e-5);
  EXPECT_NEAR(j["economics"]["revenue"].get<double>(), 0.1 * (0.256 * 0.003 + 0.744 * 0.15) + 0.0011 * 0.6, 1e-5);
  EXPECT_EQ(j["timeline"]["arrived_per_s"].size(), j["timeline"]["hit_rate"].size());
  EXPECT_EQ(to_json(made_run()), j);
}

TEST(sim_summary, quantiles_are_exact) {
  std::vector<int64_t> v;
  for (int64_t k = 100; k >= 1; --k) v.push_back(k);
  const auto q = quantiles_of(v);
  EXPECT_EQ(q.p50, 50);
  EXPECT_EQ(q.p90, 90);
  EXPECT_EQ(q.p99, 99);
  EXPECT_EQ(q.most, 100);
  v = {7};
  EXPECT_EQ(quantiles_of(v).p99, 7);
  v.clear();
  EXPECT_EQ(quantiles_of(v).count, 0u);
}

TEST(sim_timeline, keeps_sums_when_it_merges) {
  timeline t(1'000);
  for (int64_t k = 0; k < 10'000; ++k) t.at(k * 1'000).arrived += 1;
  t.add_step(1, 2'000'000, 6'000'000, 4'000, 8'000);
  EXPECT_LE(t.bins().size(), timeline::most_bins);
  double arrived = 0, work = 0, rank = 0;
  for (const auto& b : t.bins()) arrived += b.arrived, work += b.work_ns[1], rank += b.rank_ns[1];
  EXPECT_EQ(arrived, 10'000);
  EXPECT_NEAR(work, 4'000, 1e-6);
  EXPECT_NEAR(rank, 8'000, 1e-6);
  EXPECT_NEAR(t.work_between(1, 3'000'000, 5'000'000), 2'000, 20);
  EXPECT_NEAR(t.work_between(1, 0, 10'000'000), 4'000, 1e-6);
}

TEST(sim_compare, shows_what_changed) {
  const auto a = to_json(made_run(1));
  auto b = to_json(made_run(2));
  b["ttft_ms"]["p50"] = 250.0;
  const auto c = compare_summaries(a, b);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ((*c)["numbers"]["ttft_ms.p50"]["a"], 200.0);
  EXPECT_EQ((*c)["numbers"]["ttft_ms.p50"]["change"], 0.25);
  EXPECT_EQ((*c)["numbers"]["tokens.output"]["change"], 0.0);
  const auto text = comparison_text(*c, 0.01);
  EXPECT_THAT(text, HasSubstr("ttft_ms.p50"));
  EXPECT_THAT(text, testing::Not(HasSubstr("tokens.output")));
  EXPECT_FALSE(compare_summaries(a, json::object()));
  EXPECT_FALSE(compare_summaries(json(3), a));
}

// Tags of a page are closed in the order in which they were opened, attributes are quoted; the count of each tag.
std::map<std::string, int> tags_of(const std::string& page) {
  std::map<std::string, int> out;
  std::vector<std::string> open;
  for (size_t at = 0; (at = page.find('<', at)) != std::string::npos;) {
    const size_t end = page.find('>', at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "no end of a tag at " << at;
      return out;
    }
    std::string tag = page.substr(at + 1, end - at - 1);
    at = end;
    if (tag[0] == '!') continue;
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    EXPECT_EQ(tag.find('<'), std::string::npos) << tag;
    if (tag[0] == '/') {
      EXPECT_FALSE(open.empty());
      EXPECT_EQ(open.empty() ? "" : open.back(), tag.substr(1));
      if (!open.empty()) open.pop_back();
      continue;
    }
    const std::string name = tag.substr(0, tag.find_first_of(" /"));
    ++out[name];
    if (tag.back() != '/') open.push_back(name);
  }
  EXPECT_TRUE(open.empty());
  return out;
}

TEST(sim_html, is_whole_and_needs_nothing_else) {
  auto run = made_run();
  run.violation = "VIOLATION: <b>tokens</b> & pages";
  const auto page = html_report(run);
  const auto tags = tags_of(page);
  EXPECT_EQ(tags.at("svg"), 7);
  EXPECT_EQ(tags.at("h1"), 1);
  EXPECT_GE(tags.at("polyline"), 9);
  EXPECT_FALSE(tags.contains("script"));
  EXPECT_FALSE(tags.contains("b"));
  EXPECT_THAT(page, HasSubstr("made &lt;run&gt;"));
  EXPECT_THAT(page, HasSubstr("lost: kill of storage/2"));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;tokens"));
  for (const char* word : {"http:", "https:", "src=", "href=", "@import", "url(", "nan", "inf\""})
    EXPECT_THAT(page, testing::Not(HasSubstr(word)));
  EXPECT_LT(page.size(), 400'000u);
  tags_of(html_report(run_summary{}));  // nothing happened
}

// Where a Chromium is installed (or TROUPE_CHROMIUM names one), the page is loaded by it, without a network.
TEST(sim_html, is_shown_by_headless_chromium) {
  const char* named = std::getenv("TROUPE_CHROMIUM");
  const std::string chromium = named ? named : "chromium";
  if (std::system((chromium + " --version > /dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << "no chromium here; TROUPE_CHROMIUM can name one";
  std::string folder = testing::TempDir() + "troupe-page-XXXXXX";
  ASSERT_TRUE(mkdtemp(folder.data()));
  std::ofstream(folder + "/page.html") << html_report(made_run());
  const std::string command = chromium + " --headless --no-sandbox --disable-gpu --user-data-dir=" + folder +
                              "/profile --host-resolver-rules='MAP * ~NOTFOUND' --screenshot=" + folder +
                              "/page.png --window-size=1000,2600 --dump-dom file://" + folder + "/page.html > " +
                              folder + "/dom.html 2> /dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::ifstream in(folder + "/dom.html");
  const std::string dom{std::istreambuf_iterator<char>(in), {}};
  size_t figures = 0;
  for (size_t at = 0; (at = dom.find("<svg", at)) != std::string::npos; ++at) ++figures;
  EXPECT_EQ(figures, 7u);
  EXPECT_THAT(dom, HasSubstr("made &lt;run&gt;"));
  EXPECT_THAT(dom, HasSubstr("</body></html>"));
  std::filesystem::remove_all(folder);
}

TEST(sim_plot, gaps_and_extremes_stay_in_the_picture) {
  const double nan = std::nan("");
  const auto svg = svg_of({"t", "u", 1, 0, {{"a", "#000", {nan, 1, nan, 1e12, 0, nan}}}, {{"m", -5, 1e9}}});
  EXPECT_EQ(tags_of(svg).at("polyline"), 2);
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace troupe::sim
