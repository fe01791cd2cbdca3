// What the binding units share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace flare {

namespace nb = nanobind;

// A C-contiguous array in host memory that came in, and one that goes out as numpy.
template <typename T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <typename T, int N>
using View = nb::ndarray<nb::numpy, T, nb::ndim<N>, nb::c_contig>;
using Bytes = Array<const uint8_t, 1>;

void bind_sampler(nb::module_& m);
void bind_linear(nb::module_& m);

}  // namespace flare
