"""Kernels of linear chains: Viterbi, sums, Hessian products, samples and the k best sequences."""
