from trtops.backend.pluginref.runner import PluginRefRunner as PluginRefRunner
