// SPDX-License-Identifier: Apache-2.0
// The exponential of src/cuda/ptx/macros.inc over all 2^32 inputs, as the one number that the
// contract states: the sum of (2 * bits(x) + 1) * bits(exp(x)) mod 2^64, NaN counted as 0x7fc00000.
// A thread takes 4096 consecutive bit patterns; the sums meet by an atomic addition, whose order an
// integer does not show. Grid 4096, block 256.
#include "macros.inc"

MODULE_HEADER

.visible .entry exp_sum(.param .u64 sum)
.reqntid 256, 1, 1
{
    .reg .u64 %g_sum, %sum, %weight, %wide;
    .reg .u32 %i_block, %i_thread, %bits, %last, %result;
    .reg .f32 %x, %y;
    .reg .pred %p_nan, %p_more;
    ld.param.u64 %g_sum, [sum];
    mov.u32 %i_block, %ctaid.x;
    mov.u32 %i_thread, %tid.x;
    mad.lo.u32 %bits, %i_block, 256, %i_thread;
    shl.b32 %bits, %bits, 12;
    add.u32 %last, %bits, 4095;
    mov.u64 %sum, 0;
NEXT:
    mov.b32 %x, %bits;
    EXP_F32(%y, %x)
    mov.b32 %result, %y;
    setp.nan.f32 %p_nan, %y, %y;
    selp.b32 %result, 0x7fc00000, %result, %p_nan;
    mul.wide.u32 %weight, %bits, 2;
    add.u64 %weight, %weight, 1;
    cvt.u64.u32 %wide, %result;
    mad.lo.u64 %sum, %weight, %wide, %sum;
    setp.lt.u32 %p_more, %bits, %last;
    add.u32 %bits, %bits, 1;
    @%p_more bra NEXT;
    red.relaxed.gpu.global.add.u64 [%g_sum], %sum;
    ret;
}
