from trtops.backend.onnxrt.loader import SessionFromOnnx as SessionFromOnnx
from trtops.backend.onnxrt.loader import session_from_onnx as session_from_onnx
from trtops.backend.onnxrt.runner import OnnxrtRunner as OnnxrtRunner
