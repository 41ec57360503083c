from pathlib import Path

import evaluate
from evaluate.utils import launch_gradio_widget


module = evaluate.load(str(Path(__file__).with_name("exactness.py")), module_type="comparison")
launch_gradio_widget(module)
