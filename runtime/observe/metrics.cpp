#include "runtime/observe/metrics.hpp"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <string_view>

#include "runtime/base/check.hpp"

namespace troupe::observe {

void counter::add(double n) { counter_->Increment(n); }
void gauge::set(double v) { gauge_->Set(v); }
void gauge::add(double n) { gauge_->Increment(n); }
void histogram::observe(double v) { histogram_->Observe(v); }

bool label_allowed(const std::string& key) {
  static constexpr std::array<std::string_view, 13> keys = {
      "model_name", "engine", "finished_reason", "role",    "node", "rank", "layer",
      "route",      "code",   "reason",          "traffic", "kind", "group"};
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

struct metrics::data {
  explicit data(std::string name) : model_name(std::move(name)) {}

  /// The labels of a series within its family's bound: values of a series too many become "other".
  prometheus::Labels bounded(const std::string& name, const labels& with) {
    prometheus::Labels all{{"model_name", model_name}};
    for (const auto& [key, value] : with) {
      TROUPE_CHECK(label_allowed(key), "metric {}: label {} is not in the allow-list of runtime/observe", name, key);
      all[key] = value.substr(0, 128);
    }
    std::lock_guard lock(mutex);
    auto& seen = series[name];
    if (!seen.contains(all) && seen.size() >= max_series_per_family) {
      for (const auto& [key, value] : with) all[key] = "other";
    } else {
      seen.insert(all);
    }
    return all;
  }

  const std::string model_name;
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
  std::mutex mutex;
  std::map<std::string, std::set<prometheus::Labels>> series;
};

metrics::metrics(std::string model_name) : data_(std::make_unique<data>(std::move(model_name))) {}
metrics::~metrics() = default;

observe::counter metrics::counter(const std::string& name, const std::string& help, const labels& with) {
  auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(data_->registry);
  return observe::counter(&family.Add(data_->bounded(name, with)));
}

observe::gauge metrics::gauge(const std::string& name, const std::string& help, const labels& with) {
  auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(data_->registry);
  return observe::gauge(&family.Add(data_->bounded(name, with)));
}

observe::histogram metrics::histogram(const std::string& name, const std::string& help,
                                      const std::vector<double>& bounds, const labels& with) {
  auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(data_->registry);
  return observe::histogram(&family.Add(data_->bounded(name, with), bounds));
}

std::string metrics::exposition() const { return prometheus::TextSerializer().Serialize(data_->registry.Collect()); }

}  // namespace troupe::observe
