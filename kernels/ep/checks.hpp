// Checks of arguments that every kind of group makes.
#pragma once

#include "kernels/ep/ep.hpp"

namespace troupe::kernels::ep {

/// invalid_argument unless every size is usable and the buffers they imply stay below 64 GiB.
result<void> check_shape(const group_shape& shape);

/// invalid_argument for a micro-batch that the shape does not have.
result<void> check_micro(const group_shape& shape, uint32_t micro);

/// invalid_argument unless x and routes have the sizes that `shape` and k allow and every route names a rank.
/// Returns the number of rows.
result<uint32_t> check_dispatch(const group_shape& shape, uint32_t micro, std::span<const float> x,
                                std::span<const route> routes, uint32_t k);

/// invalid_argument unless y holds `items` vectors, out holds rows * k, and the shape allows so many notes.
result<void> check_combine(const group_shape& shape, std::span<const float> y, size_t items, std::span<const float> out,
                           size_t rows, uint32_t k, size_t notes);

}  // namespace troupe::kernels::ep
