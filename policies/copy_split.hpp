// How the rows of a batch split among the copies of each expert, so that the busiest rank of the EP group has the least
// to do. (Where the copies live is eplb.hpp.)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// The copies of one MoE layer in compressed form, made once per placement: copy i in [first[e], first[e + 1]) of
/// expert e is on rank[i]. Ranks of one expert ascend and differ.
struct copy_table {
  uint32_t ranks = 0;
  std::vector<uint32_t> first;  // experts + 1 entries
  std::vector<uint32_t> rank;
};

/// From [expert] -> ranks (any order; copies on the same rank count as one). Fails if an expert has no copy or a rank
/// is not below `ranks`.
result<copy_table> make_copy_table(const std::vector<std::vector<uint32_t>>& copies, uint32_t ranks);

/// How far to go.
struct copy_split_options {
  double tolerance = 0.005;  // stop when the busiest rank is this close to the bound
  uint32_t max_sweeps = 64;
};

/// A split and its own proof: no split at all gets the busiest rank below `bound`.
struct copy_split_plan {
  std::vector<double> share;  // per copy of the table, rows (not fractions); those of an expert add up to its rows
  std::vector<double> load;   // rows per rank
  double busiest = 0;         // largest load
  double bound = 0;           // the rows of experts with all copies inside some set of ranks, over the size of the set
  uint32_t sweeps = 0;
  std::string reason;
};

/// Minimises the busiest rank's rows for `rows[expert]` >= 0. Block coordinate descent on the sum of squared loads:
/// expert by expert, its rows are poured over its ranks like water, lowest first. Load vectors of such splits are the
/// bases of a polymatroid, where the least sum of squares is also the least maximum (Fujishige 1980), so the sweeps
/// converge to the optimum of the linear program; they stop within `tolerance` of the bound, which rank sets by
/// descending load supply. Deterministic: every rank of the group computes the same split. Fails on wrong sizes and on
/// negative or non-finite rows.
result<copy_split_plan> plan_copy_split(const copy_table& table, std::span<const double> rows,
                                        const copy_split_options& options = {});

/// Whole rows: `share` of one expert rounded so that the parts add up to `total` (largest remainder, ties to the first
/// copy).
std::vector<uint32_t> whole_rows(std::span<const double> share, uint32_t total);

}  // namespace troupe::policies
