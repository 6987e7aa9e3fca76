"""What programs are compared with that are no programs: functions of Python, models of PyTorch and ONNX."""
