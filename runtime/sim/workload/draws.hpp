// Draws from distributions that are the same in every build and on every machine: additions, multiplications and
// divisions only (those are exact by IEEE 754), no function of the C library, whose last bits differ between versions.
#pragma once

#include <cstdint>

#include "runtime/base/clock.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::sim {

/// Natural logarithm of a positive, normal number; absolute error below 1e-12.
double exact_ln(double x);
/// e^x for |x| <= 700; relative error below 1e-12.
double exact_exp(double x);

/// Exponential with this mean; 0 to about 37 means.
nanoseconds draw_exponential(rng& random, nanoseconds mean);
/// Log-normal by its median and the sigma of its logarithm in hundredths; the normal draw is a sum of twelve uniform
/// ones (within 6 sigmas).
double draw_log_normal(rng& random, double median, uint32_t sigma_hundredths);
/// Log-uniform in [least, most], 0 < least <= most.
nanoseconds draw_log_uniform(rng& random, nanoseconds least, nanoseconds most);
/// Number of trials up to and including the first success, with this mean >= 1; at most 1,000 means.
uint32_t draw_geometric(rng& random, uint32_t mean);

}  // namespace troupe::sim
