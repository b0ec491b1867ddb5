// All that a kernel's body calls.

#include "blocks.cuh"
#include "looked_up.cuh"
#include "instructions.cuh"
#include "accumulate.cuh"
#include "product.cuh"
#include "dequantize.cuh"
#include "layer.cuh"
#include "attention.cuh"
