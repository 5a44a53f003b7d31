"""Models quantised for Qualcomm's processors, which onnxruntime runs by its provider QNN."""

from sardonyx.quantization.execution_providers.qnn.preprocess import qnn_preprocess_model
from sardonyx.quantization.execution_providers.qnn.quant_config import get_qnn_qdq_config

__all__ = ["get_qnn_qdq_config", "qnn_preprocess_model"]
