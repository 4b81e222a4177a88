"""The checks of `eyas verify`: exactness, drafter law, parity with transformers, acceptance, speed."""
