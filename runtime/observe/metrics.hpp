// Metrics of one process in Prometheus' text format. Names are vLLM's where the meaning is the same, `troupe_`
// otherwise.
//
// Labels come from an allow-list and never from a client: a key outside it is an own fault (check), and a family that
// has reached its bound of series counts further values under "other".
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace troupe::observe {

using labels = std::map<std::string, std::string>;

/// A number that only grows. Copyable handle, valid as long as its registry; any thread.
class counter {
 public:
  explicit counter(prometheus::Counter* c) : counter_(c) {}
  void add(double n = 1);

 private:
  prometheus::Counter* counter_;
};

/// A number that goes up and down. Copyable handle, valid as long as its registry; any thread.
class gauge {
 public:
  explicit gauge(prometheus::Gauge* g) : gauge_(g) {}
  void set(double v);
  void add(double n);

 private:
  prometheus::Gauge* gauge_;
};

/// A distribution. Copyable handle, valid as long as its registry; any thread.
class histogram {
 public:
  explicit histogram(prometheus::Histogram* h) : histogram_(h) {}
  void observe(double v);

 private:
  prometheus::Histogram* histogram_;
};

/// The registry. Every function may be called from any thread; asking again for the same name and labels gives the same
/// series. Every series gets the labels `model_name` and, where given, those of the call.
class metrics {
 public:
  static constexpr size_t max_series_per_family = 256;

  explicit metrics(std::string model_name);
  ~metrics();

  observe::counter counter(const std::string& name, const std::string& help, const labels& with = {});
  observe::gauge gauge(const std::string& name, const std::string& help, const labels& with = {});
  /// `bounds` are the upper bounds of the buckets, ascending; the first call of a name decides.
  observe::histogram histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                               const labels& with = {});

  /// Everything in Prometheus' text exposition format 0.0.4.
  std::string exposition() const;

 private:
  struct data;
  std::unique_ptr<data> data_;
};

/// Keys that a label may have.
bool label_allowed(const std::string& key);

}  // namespace troupe::observe
