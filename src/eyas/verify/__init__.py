"""What `eyas verify` measures: exactness, drafter law, parity with transformers, acceptance, speed."""
