// Every kernel, as one unit.
#include "attention.cuh"
#include "attention_back.cuh"
#include "backward.cuh"
#include "cut.cuh"
#include "linear.cuh"
#include "loss.cuh"
#include "rows.cuh"
#include "sample.cuh"
