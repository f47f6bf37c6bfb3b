"""What the engine learns about its drafts: confidences and their calibration."""
