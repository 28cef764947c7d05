from trtops.backend.trt.infer.formats import FormattedArray as FormattedArray
from trtops.metadata import BoundedShape as BoundedShape
from trtops.metadata import MetadataTuple as MetadataTuple
from trtops.metadata import TensorMetadata as TensorMetadata
