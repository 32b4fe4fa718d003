"""How public calls behave inside torch.compile, torch.func and autograd's hooks."""
