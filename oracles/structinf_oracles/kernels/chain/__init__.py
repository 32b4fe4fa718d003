"""Kernels of linear chains: Viterbi, sums, Hessian-vector products, samples and the k best sequences."""
