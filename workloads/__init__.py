"""What is profiled: cases, their model, their training loop, the process torchrun starts. Only this room knows torch."""
