"""What a run will take, told without a device: memory per rank, traffic per step, and what would fit instead."""
