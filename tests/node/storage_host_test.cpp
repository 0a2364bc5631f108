// A storage node's disks and index over several lives of the process: older copies that are put back.
#include "runtime/node/storage_host.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <future>

#include "tests/cli/run_program.hpp"
#include "tests/kv/device/shard_fixture.hpp"

namespace troupe::node {
namespace {

using namespace kv::testing_support;
using tests::temporary_folder;
namespace fs = std::filesystem;

struct life {
  explicit life(const std::string& path) {
    const std::string file = path + "/c.yaml";
    tests::write_file(file, "model: {path: .}\nstorage: {path: " + path +
                                ", nodes: 3, chunk: 1MiB, capacity: 64MiB, block_tokens: 4, fingerprint: m}\n");
    auto settings = config::load(file);
    EXPECT_TRUE(settings) << settings.error().message;
    host = std::make_unique<storage_host>(*settings, 0);
    std::promise<result<actors::opened_storage>> told;
    host->open([&](result<actors::opened_storage> r) { told.set_value(std::move(r)); });
    auto r = told.get_future().get();
    EXPECT_TRUE(r) << r.error().message;
    if (r) opened = std::move(*r);
  }
  ~life() {
    opened = {};
    host->stop();
  }
  kv::shard_store& disk() { return *opened.targets.at(0).store; }
  bool notes(const std::string& what) const {
    return std::any_of(opened.notes.begin(), opened.notes.end(),
                       [&](const std::string& n) { return n.find(what) != std::string::npos; });
  }
  std::unique_ptr<storage_host> host;
  actors::opened_storage opened;
};

struct storage_host_copies : testing::Test {
  temporary_folder folder;
  const std::string node = folder.path + "/node-0000", aside = folder.path + "/aside";
  std::vector<made_shard> shards;

  void put(life& l) {
    shards.push_back(make_shard(100 + shards.size(), 0, 30'000));
    const auto put = shards.back().put();
    ASSERT_TRUE(l.disk().put({&put, 1}));
  }
  void expect_all(life& l) {
    for (const auto& s : shards) EXPECT_TRUE(holds(l.disk(), s));
  }
  void set_aside(const std::string& what) {
    fs::remove_all(aside);
    fs::copy(node + what, aside, fs::copy_options::recursive);
  }
  void put_back(const std::string& what) {
    fs::remove_all(node + what);
    fs::copy(aside, node + what, fs::copy_options::recursive);
  }
};

// Before: the shards of later were unknown, so that what was put next overwrote them.
TEST_F(storage_host_copies, an_older_index_is_noticed_before_anything_is_overwritten) {
  put(*std::make_unique<life>(folder.path));
  set_aside("/index");
  {
    life l(folder.path);
    EXPECT_FALSE(l.opened.index_lost);
    EXPECT_TRUE(l.opened.notes.empty()) << l.opened.notes.front();
    put(l);
    put(l);
  }
  put_back("/index");
  {
    life l(folder.path);
    EXPECT_TRUE(l.notes("the index is an older copy"));
    EXPECT_TRUE(l.opened.index_lost) << "scrub has to restore the rest of it";
    expect_all(l);
    put(l);
    expect_all(l);
    // A copy that is taken while the node runs is older after the node was closed.
    set_aside("/index");
    put(l);
  }
  put_back("/index");
  life l(folder.path);
  EXPECT_TRUE(l.notes("the index is an older copy"));
  expect_all(l);
}

TEST_F(storage_host_copies, an_older_disk_is_noticed) {
  put(*std::make_unique<life>(folder.path));
  set_aside("/disk-01");
  put(*std::make_unique<life>(folder.path));
  put_back("/disk-01");
  {
    life l(folder.path);
    EXPECT_TRUE(l.notes("its disk is an older copy"));
    EXPECT_FALSE(l.opened.index_lost);
    EXPECT_TRUE(holds(l.disk(), shards[0]));
    EXPECT_EQ(all_of(l.disk()).size(), 1u) << "what is not on it is missing, so that scrub makes it good";
  }
  EXPECT_TRUE(life(folder.path).opened.notes.empty());
}

}  // namespace
}  // namespace troupe::node
