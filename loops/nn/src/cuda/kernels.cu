// Every kernel, as one unit.
#include "attention.cuh"
#include "linear.cuh"
#include "rows.cuh"
#include "sample.cuh"
