"""Operations of the model: one specification, one reference, one implementation a platform."""
