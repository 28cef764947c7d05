"""Task metrics: the value of a model and of its engine on labelled data, with an interval of the loss.

A metric is built in, an entry point of the group ``trtops.metrics``, or a function of a script
(``script.py:function``): :func:`trtops.comparator.tasks.scores.task_metrics`.
"""
