"""Sound files to samples and back: decoding, encoding, resampling, all through PyAV."""
